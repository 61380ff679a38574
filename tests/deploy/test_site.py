"""The pages of docs/ as a site: each link leads to a page, and nothing comes from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
BUILD_S_MAX = 250
LOADED = {"img": "src", "link": "href", "script": "src"}  # what a browser fetches by itself
SAYS_WHERE_IT_IS = {"canonical", "next", "prev"}  # links that no browser follows


class Page(HTMLParser):
    """ids: what a link may lead to in it; loads: what it is shown with; leads_to: its links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loads: list[str] = []
        self.leads_to: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.leads_to.append(given["href"])
        if given.get("rel") not in SAYS_WHERE_IT_IS and given.get(LOADED.get(tag, ""), ""):
            self.loads.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    return build_site(tmp_path_factory.mktemp("tree"))


def build_site(tree: Path) -> Path:
    """Build the site in a folder of its own, as `./run docs` does; return where it is."""
    shutil.copytree(ROOT / "docs", tree / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tree)
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
    done = subprocess.run(
        command, cwd=tree, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return tree / "build" / "site"


def test_every_page_is_in_the_site_and_each_of_its_links_leads_somewhere(site: Path) -> None:
    written = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert {site / path.with_suffix(".html") for path in written} <= {*site.rglob("*.html")}
    assert dead_links(site) == []


def dead_links(site: Path) -> list[str]:
    """Return each link of a page that leads to no file, or to nothing in it."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        for link in page.leads_to if path.name != "404.html" else ():
            parts = urlsplit(link)
            if parts.scheme:
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            to = to / "index.html" if to.is_dir() else to
            if not to.exists() or (parts.fragment and parts.fragment not in pages[to].ids):
                dead.append(f"{path.relative_to(site)}: {link}")
    return dead


def test_a_page_is_shown_without_a_network(site: Path) -> None:
    check_loads_nothing(site)


def check_loads_nothing(site: Path) -> None:
    """Fail where a page or a style sheet would be shown with something from elsewhere."""
    elsewhere = re.compile(r"url\(\s*['\"]?(https?:)?//|@import\s+['\"](https?:)?//")
    for path in site.rglob("*.html"):
        loads = Page(path.read_text(encoding="utf-8")).loads
        assert [each for each in loads if urlsplit(each).netloc] == [], path
    for path in site.rglob("*.css"):
        assert not elsewhere.search(path.read_text(encoding="utf-8")), path


def test_every_page_has_its_place_in_the_list_of_pages() -> None:
    listed = re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    written = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(written)
