"""What the site of docs/ takes from outside that folder: the pictures in figures/readme."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files

PICTURES = "figures/readme"


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures under their path in the repository."""
    root = config.config_file_path.rpartition("/")[0]
    site = (config.site_dir, config.use_directory_urls)
    for name in ("joint", "joint_other", "patch", "profiles", "rollout", "summary"):
        files.append(File(f"{PICTURES}/{name}.png", root, *site))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Pages link pictures by their path in the repository, which GitHub shows; the site has them beside the pages."""
    return markdown.replace(f"](../{PICTURES}/", f"]({PICTURES}/")
