"""The command `live`: the faces in front of a camera, on a page and in a table."""

from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tqdm import tqdm

from fer_vit.commands import HostOptions
from fer_vit.engine.choice import PRECISION_HELP, Precision
from fer_vit.errors import FerVitError, printable
from fer_vit.faces import Faces
from fer_vit.fields import choose_fields, face_fields
from fer_vit.files import check_output
from fer_vit.heads import EXPRESSION, HEADS
from fer_vit.options import takes
from fer_vit.predict.camera import is_camera, public_source_name, watch
from fer_vit.predict.outputs import check_heads
from fer_vit.predict.recognizer import load
from fer_vit.report.draw import mark, probability_text
from fer_vit.report.table import write_fields
from fer_vit.wording import format_counts

if TYPE_CHECKING:
    from fer_vit.app.server import LivePage


@dataclass(frozen=True)
class LiveOptions(HostOptions):
    """Options of `live`."""

    TEXTS: ClassVar = {"OUTPUTS": ", ".join([EXPRESSION, *HEADS]), "PRECISION": PRECISION_HELP}

    source: str = "0"
    """A camera's number, an address (rtsp://, http:// ...), or a video file, played in real time.
    """
    _: KW_ONLY
    checkpoint: str | None = None
    """A name from `fer-vit models` (default: the marked one), "user/name" on the Hugging Face hub,
    a folder of `fer-vit export` or a checkpoint of `fer-vit fit`."""
    output: Path | None = None
    """A .csv or .jsonl table to write, with the columns of `predict` for videos."""
    overwrite: bool = False
    """Replace an existing table."""
    outputs: Sequence[str] = ()
    """Columns to write: {OUTPUTS}. Default: all that the model has."""
    precision: Precision = "float32"
    """{PRECISION}"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_camera(self.source) or "://" in self.source or Path(self.source).is_file()):
            raise FerVitError(
                "Expected a camera's number, an address with ://, or a video file, but got "
                f"{self.source}."
            )
        if self.output:
            if self.output.suffix.lower() not in (".csv", ".jsonl"):
                raise FerVitError(
                    "Expected a table that ends in .csv or .jsonl, since it grows, but got "
                    f"{self.output}."
                )
            check_output(self.output, self.overwrite)


@takes(LiveOptions)
def live(options: LiveOptions) -> None:
    """Finds and classifies the faces in front of a camera, and shows them on a local page.

    The page skips frames that it has no time for. To end the program, press Ctrl-C or the button on
    the page.

    Examples:
        fer-vit live

        fer-vit live rtsp://camera.local/stream --output live.csv

        fer-vit live clip.mp4 --port 8080
    """
    # not at the top: the help needs no server
    from fer_vit.app.guard import public_address
    from fer_vit.app.server import LivePage, create_app, serving

    behind_proxy = public_address(options.public) if options.public else None
    model = load(options.checkpoint, precision=options.precision)
    check_heads(options.outputs, model.heads, model.name)
    page = LivePage(options.output.name if options.output else None)
    with ExitStack() as stack:
        listener, address = options.listen()
        stack.enter_context(listener)
        stack.enter_context(serving(create_app(page, options.names, behind_proxy), listener))

        fields = face_fields(model.labels, model.outputs, videos=True)
        table = None
        if options.output:
            chosen = choose_fields(fields, options.outputs)
            table = stack.enter_context(write_fields(options.output, chosen, live=True))
        name = printable(public_source_name(options.source))
        print(f"{name}: open {address} (Ctrl-C ends)", flush=True)
        stack.callback(print_summary, page, options.output)
        line = stack.enter_context(tqdm(bar_format="{desc}", disable=None))
        with suppress(KeyboardInterrupt), closing(watch(model, options.source)) as frames:
            for seen in frames:
                if table:
                    table.write(seen.faces.rows(fields))
                page.show(seen)
                line.set_description_str(f"{page.speed}; {list_faces(seen.faces)}")
                if page.stopped:
                    break
        page.stopped = True  # ends the wait of browsers for the next picture


def list_faces(faces: Faces) -> str:
    """Returns track, label and probability of each face as text."""
    people = []
    for face in faces:
        marked = mark(face)
        people.append(f"{marked.number} {marked.label} {probability_text(marked.probability)}")
    return ", ".join(people) or "no face"


def print_summary(page: "LivePage", output: Path | None) -> None:
    """Prints the counts of frames, faces and labels, the speed, and the path of the table."""
    if page.frames:
        print(f"{page.frames:,} frames")
        print(f"{page.labels.total():,} faces: {format_counts(page.labels)}")
        print(f"At the end {page.speed}")
        if output:
            table = "standard output" if str(output) == "-" else printable(str(output))
            print(f"Table: {table}")
