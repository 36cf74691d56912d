"""Build the dashboard into the wheel where its source is newer than ``static/`` and Node is there."""

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DashboardBuildHook(BuildHookInterface):
    """What is committed goes into the wheel as it is, unless it is stale and can be built."""

    def initialize(self, version: str, _build_data: dict[str, Any]) -> None:
        """Build ``static/`` again; an editable install and one without Node take what is committed."""
        if version != "standard":
            return
        spec = importlib.util.spec_from_file_location("page", Path(self.root) / "scripts/page.py")
        assert spec is not None
        assert spec.loader is not None
        page = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(page)
        try:
            page.check()
        except page.Broken:
            try:
                page.bundle()
            except page.Broken as problem:
                self.app.display_warning(f"the dashboard is not built again: {problem}")
