"""The datasets that ship, behind `data.ports.Datasets`; `catalog` is the door to them."""
