"""One file a migration; `down_revision` names the one before."""
