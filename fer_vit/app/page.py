"""The page and its API, built with Gradio."""

import socket
import sys
from collections.abc import Callable, Sequence
from html import escape
from shutil import make_archive
from typing import Any

from fer_vit.app.jobs import MAX_FACES, MAX_PHOTOS, OPTIONS, Jobs
from fer_vit.app.network import confined, refuse, roomy
from fer_vit.errors import FerVitError
from fer_vit.predict.inputs import MEDIA_SUFFIXES

try:
    import gradio as gr
    import uvicorn
    from fastapi import FastAPI
    from starlette.staticfiles import StaticFiles
except ModuleNotFoundError as missing:
    raise FerVitError('The page needs one more package: pip install "fer-vit[app]".') from missing

MAX_BYTES = 32_000_000
"""Size of a photo or clip."""
SPARE = 500_000_000
"""Bytes on the disk that uploads leave free: tables and reports need some."""
MAX_WAITING = 64
"""Requests that wait for their turn."""
INTRO = f"""# What does this face express?
A model says how people would name the expression, and which parts of the face speak for it. It does not know what the
person feels. Photos stay on the computer that runs this page: the first request after an hour removes them, or the end
of the program. At most {MAX_PHOTOS} photos or clips of {MAX_BYTES // 10**6} MB at a time; of a clip, {OPTIONS.fps}
frames a second of its first {OPTIONS.end:g} seconds. The table has every face; up to {MAX_FACES} of photos and as many
of clips are explained."""
CSS = """
.gradio-container { max-width: 1180px !important; margin: 0 auto }
.report .html-container { padding: 0 }
h1 { font: 500 2rem/1.2 "Iowan Old Style", Charter, "Palatino Linotype", Palatino, Georgia, serif !important }
.report iframe { display: block; width: 100%; height: min(47rem, 92vh); border: 1px solid var(--border-color-primary);
  border-radius: 12px }
"""


def build_page(jobs: Jobs, models: Sequence[str]) -> gr.Blocks:
    """Returns the page and its API, two functions; the first of the models is chosen."""

    def predict(photos: list[str] | None, model: str) -> tuple[str, Any]:
        """Finds and classifies every face. Returns a summary, and the table that `fer-vit predict` writes."""
        if not photos:
            return "", gr.DownloadButton(visible=False)
        summary, table = told(jobs.predict, photos, model)
        return summary.replace("\n", "<br>"), gr.DownloadButton(value=table, visible=True)

    def visualize(photos: list[str] | None, model: str) -> tuple[str, Any]:
        """Explains faces. Returns a frame with the page of `fer-vit visualize`, and all of it as an archive."""
        report = told(jobs.visualize, photos, model) if photos else None
        if report is None:
            return "", gr.DownloadButton(visible=False)
        address = f"results/{report.parent.name}/{report.name}/index.html"
        frame = f'<iframe src="{address}" title="What speaks for each prediction"></iframe>'
        return frame, gr.DownloadButton(value=make_archive(str(report), "zip", report), visible=True)

    page = gr.Blocks(title="fer-vit", analytics_enabled=False)
    with page:
        gr.Markdown(INTRO)
        with gr.Row():
            with gr.Column(scale=3), gr.Tabs():
                with gr.Tab("Photos and clips"):
                    # Systems do not know .mts, or take it for text.
                    kinds = ["image", "video", *MEDIA_SUFFIXES, *map(str.upper, MEDIA_SUFFIXES)]
                    photos = gr.File(file_count="multiple", file_types=kinds, show_label=False, height=220)
                with gr.Tab("Camera"):
                    shot = gr.Image(sources="webcam", type="filepath", image_mode=None, show_label=False)
            with gr.Column(scale=2):
                model = gr.Dropdown(list(models), value=models[0], label="Model")
                summary = gr.Markdown()
                with gr.Row():
                    table = gr.DownloadButton("Table (CSV)", size="sm", min_width=100, visible=False)
                    archive = gr.DownloadButton("Report (zip)", size="sm", min_width=100, visible=False)
        report = gr.HTML(elem_classes="report", padding=False)
        shot.change(lambda photo: photo and [photo], shot, photos, api_visibility="private")
        found = gr.on([photos.change, model.input], predict, [photos, model], [summary, table])
        explained = found.success(visualize, [photos, model], [report, archive])
        # What was shown is of other photos, and would stay beside the error.
        shown = [summary, table, report, archive]
        found.failure(lambda: predict(None, "") + visualize(None, ""), None, shown, api_visibility="private")
        explained.failure(lambda: visualize(None, ""), None, [report, archive], api_visibility="private")
    page.queue(max_size=MAX_WAITING)
    page.state_session_capacity = MAX_WAITING  # each request of a program is a session, of which Gradio keeps 10,000
    return page


def told(work: Callable[[Sequence[str], str], Any], photos: Sequence[str], model: str) -> Any:
    """Does some work; what the visitor can mend becomes one line on the page."""
    try:
        return work(photos, model)
    except (FerVitError, OSError) as error:
        # Without the path that the system's errors name: it is the server's own.
        text = getattr(error, "strerror", None) or str(error)
        raise gr.Error(escape(text), title="", print_exception=False) from error


def serve(page: gr.Blocks, jobs: Jobs, server: socket.socket) -> None:
    """Answers requests until it is interrupted. From now on this process opens no connection to another machine."""
    app = FastAPI(openapi_url=None)
    app.mount("/results", StaticFiles(directory=jobs.results))
    theme = gr.themes.Default(
        primary_hue="stone",
        neutral_hue="stone",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
    app = gr.mount_gradio_app(
        app,
        page,
        "/",
        footer_links=["api"],
        run_history=False,
        show_error=False,
        max_file_size=MAX_BYTES,
        ssr_mode=False,
        theme=theme,
        css=CSS,
    )
    sys.addaudithook(refuse)
    config = uvicorn.Config(confined(roomy(app, jobs.room, SPARE)), log_level="warning", timeout_graceful_shutdown=3)
    uvicorn.Server(config).run([server])
