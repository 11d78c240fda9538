"""Removes one defence after another and runs its tests, which must fail: the proof of docs/explanation/reliability.md.

    python -m tests.attacks.mutations [WORDS]

WORDS selects the sentences that contain them. Each defence is removed in a temporary copy of the tracked files.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = (
    "cv2",
    "lightning",
    "pandas",
    "pyarrow.parquet",
    "scipy.stats",
    "sklearn",
    "skimage",
    "timm",
)
LIMIT = 300  # seconds of a test: one that waits for ever has failed, too
PATIENCE = 30.0  # seconds that tests wait for what never happens without a defence


class Mutation(NamedTuple):
    """A sentence, the code that makes it true, what replaces that code, and the tests that must fail then."""

    sentence: str
    file: str
    code: str
    replacement: str
    tests: str


MUTATIONS = [
    # Table of guarantees
    Mutation(
        "a row for every file",
        "fer_vit/predict/photos.py",
        "        except ImageError as error:\n",
        "        except ZeroDivisionError as error:\n",
        "tests/commands/test_hostile.py::test_predict_has_a_row_for_each",
    ),
    Mutation(
        "prepare counts the files that it skips",
        "fer_vit/commands/prepare.py",
        '        lines.append(f"left out: {number:,} ({reason})")\n',
        "        pass\n",
        "tests/commands/test_hostile.py::test_prepare_counts_each",
    ),
    Mutation(
        "visualize counts the files that it skips",
        "fer_vit/visualization/parts.py",
        "            status=Counter(info.reason for info in faces.infos),\n",
        "            status=Counter(face.info.reason for face in faces),\n",
        "tests/commands/test_hostile.py::test_visualize_shows_or_counts_each",
    ),
    Mutation(
        "a file that kills its worker is a row",
        "fer_vit/processes.py",
        "        self._start()\n        yield None\n",
        "        raise FerVitError(WORKER_DIED)\n",
        "tests/commands/test_hostile.py::test_a_file_that_kills_its_worker_is_a_row",
    ),
    Mutation(
        "a file that kills its worker is tried twice",
        "fer_vit/processes.py",
        "for last_attempt in (False, True):",
        "for last_attempt in (True,):",
        "tests/test_processes.py::test_a_process_that_is_killed_once_is_replaced",
    ),
    Mutation(
        "prepare counts and names a file that kills its worker",
        "fer_vit/sources/landmarks.py",
        "            crashed.append(row.name)\n",
        "",
        "tests/commands/test_hostile.py::test_prepare_leaves_out_a_file_that_kills_its_worker_and_names_it",
    ),
    Mutation(
        "fit names the image that kills its worker",
        "fer_vit/data/dataset.py",
        "    note_in_worker(face.path)\n",
        "",
        "tests/commands/test_hostile.py::test_training_names_the_image_that_kills_its_worker",
    ),
    Mutation(
        "size is checked before decoding",
        "fer_vit/face/image.py",
        "    if math.prod(size) > max_pixels:",
        "    if False:",
        "tests/face/test_image.py::test_each_format_has_the_limit_of_its_decoder",
    ),
    Mutation(
        "type is checked before decoding",
        "fer_vit/face/image.py",
        "        raise ImageError(_reason_unread(data))\n",
        "        return\n",
        "tests/face/test_image.py::test_other_formats_and_short_files_reach_no_decoder",
    ),
    Mutation(
        "a prediction depends on its photo alone",
        "fer_vit/data/dataset.py",
        "np.stack([sample.image for sample in samples])",
        "np.stack([samples[0].image for _ in samples])",
        "tests/test_numbers.py::test_a_prediction_is_its_photos_own",
    ),
    Mutation(
        "checkpoints run no code",
        "fer_vit/pickles.py",
        "        check_pickle(file.read(pickles[0]))\n",
        "",
        "tests/test_pickles.py::test_what_no_checkpoint_needs_is_refused",
    ),
    Mutation(
        "pretrained weights are read within the limits",
        "fer_vit/model/pretrained.py",
        "else load_tensors(path)",
        "else __import__('torch').load(path, weights_only=True)",
        "tests/model/test_pretrained.py::test_other_files_are_one_line",
    ),
    Mutation(
        "manifests name no path outside their folder",
        "fer_vit/data/schema.py",
        '        yield "image", "a path below the manifest\'s folder", pc.and_(no_bytes, outside)\n',
        "",
        "tests/data/test_manifest.py::test_a_manifest_names_no_file_outside_of_its_folder",
    ),
    Mutation(
        "shards name no files",
        "fer_vit/data/schema.py",
        '        yield "image", "image bytes", no_bytes\n',
        "        pass\n",
        "tests/data/test_manifest.py::test_a_shard_names_no_files",
    ),
    Mutation(
        "a resumed checkpoint copies no foreign file",
        "fer_vit/train/checkpoints.py",
        'resumed_folder / Path(state["best_model_path"]).name',
        'Path(state["best_model_path"])',
        "-m slow tests/train/test_resume.py::test_an_untrusted_checkpoint_neither_copies_a_file_nor_hides_the_best_epoch",
    ),
    Mutation(
        "a resumed run removes no foreign files",
        "fer_vit/store/checkpoint.py",
        "            raise _outside(path, name)\n    best",
        "            pass\n    best",
        "tests/test_security.py::test_a_resumed_run_removes_no_foreign_files",
    ),
    Mutation(
        "damaged manifests are one line",
        "fer_vit/data/shards.py",
        "        except (pa.ArrowException, OSError) as error:",
        "        except ZeroDivisionError as error:",
        "tests/test_fuzz.py::test_a_damaged_manifest",
    ),
    Mutation(
        "names cannot command a terminal",
        "fer_vit/errors.py",
        'self.stream.write(CONTROL.sub("?", text))',
        "self.stream.write(text)",
        "tests/test_cli.py::test_what_libraries_print_cannot_command_a_terminal",
    ),
    Mutation(
        "names in errors cannot command a terminal",
        "fer_vit/errors.py",
        "        super().__init__(printable(without_traceback))\n",
        "        super().__init__(without_traceback)\n",
        "tests/test_errors.py",
    ),
    Mutation(
        "names are text in CSV",
        "fer_vit/report/table.py",
        '    return FORMULA.sub(r"\\g<0>\'", text)\n',
        "    return text\n",
        "tests/report/test_table.py::test_no_spreadsheet_runs_a_name",
    ),
    Mutation(
        "names are text in HTML",
        "fer_vit/report/html.py",
        "autoescape=True",
        "autoescape=False",
        "tests/report/test_hostile_names.py",
    ),
    Mutation(
        "zips write nothing outside",
        "fer_vit/sources/archive.py",
        "                    opened.extract(entry, folder)\n",
        "                    place = folder / entry.filename\n"
        "                    place.parent.mkdir(parents=True, exist_ok=True)\n"
        "                    place.write_bytes(opened.read(entry))\n",
        "tests/test_crashes.py::test_no_name_leads_out_of_a_zip",
    ),
    Mutation(
        "tars write nothing outside",
        "fer_vit/sources/archive.py",
        'set_attrs=False, filter="data"',
        'set_attrs=False, filter="fully_trusted"',
        "tests/sources/test_archive.py::test_a_tar_writes_nothing_outside_and_makes_no_link",
    ),
    Mutation(
        "the size of a zip is checked",
        "fer_vit/sources/archive.py",
        "    if size > free:",
        "    if False:",
        "tests/test_crashes.py::test_the_size_of_a_zip_is_checked",
    ),
    Mutation(
        "zips use deflate alone",
        "fer_vit/sources/archive.py",
        "{entry.compress_type for entry in entries}",
        "{zipfile.ZIP_DEFLATED for entry in entries}",
        "tests/test_crashes.py::test_a_zip_whose_decoder_needs_much_memory_is_refused",
    ),
    Mutation(
        "large photos in archives are left out",
        "fer_vit/sources/archive.py",
        "and size > MAX_FILE_BYTES",
        "and False",
        "tests/sources/test_archive.py::test_a_large_photo_is_counted_and_a_large_table_is_unpacked",
    ),
    Mutation(
        "the list of entries is limited",
        "fer_vit/sources/archive.py",
        "    if size is not None and size > MAX_LIST:",
        "    if False:",
        "tests/sources/test_archive.py::test_a_list_of_entries_that_takes_much_memory_is_refused",
    ),
    Mutation(
        "impossible names in archives are left out and counted",
        "fer_vit/sources/archive.py",
        "    ENAMETOOLONG: NAME_TOO_LONG,\n",
        "",
        "tests/sources/test_archive.py::test_one_bad_name_is_counted_and_the_others_are_read",
    ),
    Mutation(
        "links and devices in tars are counted",
        "fer_vit/sources/archive.py",
        "        return NO_FILE\n",
        "        return None\n",
        "tests/sources/test_archive.py::test_a_tar_writes_nothing_outside_and_makes_no_link",
    ),
    Mutation(
        "tables have at most 10,000 columns and 100 million cells",
        "fer_vit/tables/layout.py",
        "    if columns > MAX_COLUMNS or rows * columns > MAX_CELLS:",
        "    if False:",
        "tests/tables/test_read.py",
    ),
    Mutation(
        "names of groups have at most 200 letters",
        "fer_vit/evaluation/join.py",
        "        if len(name) > MAX_NAME_LENGTH:",
        "        if False:",
        "tests/evaluation/test_join.py::test_a_name_of_a_group_is_short",
    ),
    Mutation(
        "output appears complete or not at all",
        "fer_vit/files.py",
        '        new = scratch / "new" / _name(path)\n',
        "        new = path\n",
        "tests/test_crashes.py::test_a_writer_that_is_killed_at_any_call",
    ),
    Mutation(
        "output is flushed to disk",
        "fer_vit/files.py",
        "            os.fsync(handle)\n",
        "            pass\n",
        "tests/test_crashes.py::test_all_is_on_the_disk_first",
    ),
    Mutation(
        "links of other users are not followed",
        "fer_vit/files.py",
        "os.O_NOFOLLOW | ",
        "",
        "tests/test_crashes.py::test_no_entry_of_another_user_stops_a_writer_or_moves_files",
    ),
    Mutation(
        "FIFOs of other users stop nothing",
        "fer_vit/files.py",
        "os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK",
        "os.O_NOFOLLOW",
        "tests/test_crashes.py::test_no_entry_of_another_user_stops_a_writer_or_moves_files",
    ),
    Mutation(
        "folders of other users are not opened",
        "fer_vit/files.py",
        "    if os.fstat(handle).st_uid == os.geteuid():\n        return handle\n",
        "    return handle\n",
        "tests/test_crashes.py::test_no_entry_of_another_user_stops_a_writer_or_moves_files",
    ),
    Mutation(
        "only marked folders are removed",
        "fer_vit/files.py",
        "    if OWN_MARK not in os.listdir(handle):",
        "    if False:",
        "tests/test_crashes.py::test_no_entry_of_another_user_stops_a_writer_or_moves_files",
    ),
    Mutation(
        "other users cannot read an output before it is complete",
        "fer_vit/files.py",
        "scratch.mkdir(mode=0o700)",
        "scratch.mkdir(mode=0o755)",
        "tests/test_crashes.py::test_another_user_may_not_enter_a_scratch_folder",
    ),
    Mutation(
        "a resumed training ends with the same weights",
        "fer_vit/data/dataset.py",
        "        return self.start.done if self.epoch == self.start.epoch else 0\n",
        "        return 0\n",
        "-m slow tests/train/test_resume.py::test_any_run_resumes_bit_for_bit",
    ),
    Mutation(
        "options that change the order are refused in mid-epoch",
        "fer_vit/train/datamodule.py",
        "                if position.get(name) != value:\n",
        "                if False:\n",
        "tests/train/test_datamodule.py",
    ),
    Mutation(
        "several processes train on each image once",
        "fer_vit/data/dataset.py",
        "        first = self.done + self.rank\n",
        "        first = self.done\n",
        "tests/data/test_dataset.py",
    ),
    Mutation(
        "padding rows are counted once",
        "fer_vit/data/dataset.py",
        "Draw(index % num_rows, repeat=index >= num_rows)",
        "Draw(index % num_rows)",
        "tests/data/test_dataset.py",
    ),
    Mutation(
        "a process that fails ends the others",
        "fer_vit/train/run.py",
        "processes.pop().kill()",
        "processes.pop()",
        "tests/train/test_run.py::test_a_run_that_fails_leaves_no_process_behind",
    ),
    Mutation(
        "a lost process is one line with the command that resumes",
        "fer_vit/train/run.py",
        """ or "gloo/transport" in str(error)""",
        "",
        "tests/train/test_run.py::test_a_lost_process_is_one_line_with_the_command_that_resumes",
    ),
    Mutation(
        "metrics agree with scikit-learn",
        "fer_vit/evaluation/scores.py",
        "np.nanmean(f1, -1)",
        "np.nanmedian(f1, -1)",
        "tests/evaluation/test_scores.py::test_scores_are_scikit_learns",
    ),
    Mutation(
        "a non-finite loss names the images",
        "fer_vit/train/module.py",
        "        if not loss.isfinite():\n",
        "        if False:\n",
        "tests/train/test_task.py::test_a_loss_that_is_not_finite_names_the_images",
    ),
    Mutation(
        "no command uses the network",
        "fer_vit/predict/inputs.py",
        "    paths_of_inputs = {str(item): expand_pattern(str(item)) for item in inputs}\n",
        "    __import__('socket').getaddrinfo('example.org', 80)\n"
        "    paths_of_inputs = {str(item): expand_pattern(str(item)) for item in inputs}\n",
        "tests/predict/test_inputs.py",
    ),
    Mutation(
        "damaged tables of predictions are one line",
        "fer_vit/predict/tables.py",
        "    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:",
        "    except ZeroDivisionError as error:",
        "tests/test_fuzz.py::test_a_damaged_table_of_predictions",
    ),
    Mutation(
        "damaged models are one line",
        "fer_vit/store/folder.py",
        "    except (OSError, ValueError, RecursionError, SafetensorError) as error:",
        "    except ZeroDivisionError as error:",
        "tests/test_fuzz.py::test_a_damaged_model",
    ),
    Mutation(
        "configs of odd values are one line",
        "fer_vit/train/options.py",
        "        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError) as error:",
        "        except ZeroDivisionError as error:",
        "tests/test_fuzz.py::test_a_config_of_odd_values",
    ),
    Mutation(
        "settings in a model name no other weights",
        "fer_vit/store/stored_model.py",
        'config = config | {"pretrained": False}',
        "config = config",
        "tests/store/test_folder.py::test_a_folder_cannot_ask_for_other_weights",
    ),
    Mutation(
        "settings in a model and a checkpoint have the types of the code",
        "fer_vit/store/stored_model.py",
        "read_settings(RegionViTConfig, config, name)",
        "RegionViTConfig(**config)",
        "tests/store/test_folder.py::test_invalid_settings",
    ),
    Mutation(
        "private settings of Lightning are not read",
        "fer_vit/train/options.py",
        ' and not name.startswith("_")',
        "",
        "tests/test_security.py::test_private_settings_of_lightning_in_a_checkpoint_are_not_read",
    ),
    Mutation(
        "pages have no accessibility violation",
        "fer_vit/report/head.html",
        '<html lang="en">',
        "<html>",
        "tests/report/test_html.py::test_axe_finds_no_violation",
    ),
    Mutation(
        "regions differ in colour from expressions and heat maps",
        "fer_vit/report/draw.py",
        'REGION_COLOUR = "#c3ffa5"',
        'REGION_COLOUR = "#ff8080"',
        "tests/report/test_draw.py::test_regions_differ_from_expressions_and_heat_maps",
    ),
    Mutation(
        "many processes predict every image exactly once",
        "fer_vit/predict/tables.py",
        "list(plan)[rank.rank :: rank.world_size]",
        "list(plan)",
        "tests/predict/test_tables.py::test_each_rank_predicts_its_own_tables",
    ),
    Mutation(
        "calibration error agrees with torchmetrics",
        "fer_vit/evaluation/scores.py",
        'np.abs(sums["bins"]).sum(-1) / faces',
        'np.abs(sums["bins"].sum(-1)) / faces',
        "tests/evaluation/test_scores.py::test_calibration_error_equals_torchmetrics",
    ),
    Mutation(
        "tests of two conditions agree with pingouin and statsmodels",
        "fer_vit/comparison/statistics.py",
        "equal_var=False",
        "equal_var=True",
        "tests/comparison/test_statistics.py::test_tests_equal_pingouin_and_intervals_statsmodels",
    ),
    Mutation(
        "intraclass correlations agree with pingouin",
        "fer_vit/comparison/statistics.py",
        "    df_between = num_persons - 1\n",
        "    df_between = num_persons\n",
        "tests/comparison/test_statistics.py::test_intraclass_correlation_equals_pingouin",
    ),
    Mutation(
        "intervals have the stated coverage",
        "fer_vit/comparison/statistics.py",
        "stats.ttest_1samp(values, 0).confidence_interval()",
        "stats.ttest_1samp(values, 0).confidence_interval(0.9)",
        "-m slow tests/comparison/test_statistics.py::test_coverage_of_intervals",
    ),
    # Images
    Mutation(
        "a file of more than 256 MB is not read",
        "fer_vit/face/image.py",
        "            check_file_size(os.fstat(file.fileno()).st_size)\n",
        "",
        "tests/face/test_image.py::test_a_file_larger_than_any_image_is_not_read",
    ),
    Mutation(
        "a file that grows is read up to the limit",
        "fer_vit/face/image.py",
        "    check_file_size(len(data))\n",
        "",
        "tests/face/test_image.py::test_files_that_grow_or_have_no_size_are_read_up_to_the_limit",
    ),
    Mutation(
        "scans of a JPEG are limited",
        "fer_vit/face/image.py",
        "    scans = count_scans(data)\n",
        "    scans = 0\n",
        "tests/face/test_image.py::test_a_bomb_is_an_image_error",
    ),
    Mutation(
        "segments of a JPEG are limited",
        "fer_vit/face/headers.py",
        "        if segments > MAX_SEGMENTS:",
        "        if False:",
        "tests/face/test_image.py::test_headers_of_many_parts_are_refused",
    ),
    Mutation(
        "texts of a PNG are limited",
        "fer_vit/face/image.py",
        "    if texts > MAX_TEXTS:",
        "    if False:",
        "tests/face/test_image.py::test_headers_of_many_parts_are_refused",
    ),
    Mutation(
        "progressive JPEGs have a lower limit",
        "fer_vit/face/headers.py",
        "is_heavy=_has_several_scans",
        "is_heavy=_never",
        "tests/face/test_image.py::test_each_format_has_the_limit_of_its_decoder",
    ),
    Mutation(
        "animated PNGs have a lower limit",
        "fer_vit/face/headers.py",
        'return b"acTL" in data[: data.find(b"IDAT")]',
        "return False",
        "tests/face/test_image.py::test_each_format_has_the_limit_of_its_decoder",
    ),
    Mutation(
        "transparent AVIF has a lower limit",
        "fer_vit/face/headers.py",
        "is_heavy=_has_alpha",
        "is_heavy=_never",
        "tests/face/test_image.py::test_each_format_has_the_limit_of_its_decoder",
    ),
    Mutation(
        "JPEG 2000, PNM, TGA and other formats are named",
        "fer_vit/face/image.py",
        "    for name, signature in UNREAD_FORMATS.items():",
        "    for name, signature in ():",
        "tests/face/test_image.py::test_formats_that_are_not_read_are_named_with_the_remedy",
    ),
    Mutation(
        "a video that kills its worker keeps its rows",
        "fer_vit/processes.py",
        "            if has_results or last_attempt:",
        "            if last_attempt:",
        "tests/test_processes.py::test_results_before_the_death_of_a_process_are_kept",
    ),
    Mutation(
        "the copy of a clip takes at most 1 GB",
        "fer_vit/predict/annotate.py",
        "        codec.options = X264\n",
        "        pass\n",
        "-m slow tests/attacks/test_decode.py::test_the_copy_of_a_clip_of_36_megapixels_takes_1_gb",
    ),
    Mutation(
        "HEIC is named",
        "fer_vit/face/image.py",
        'raise ImageError("HEIC, which is not read: save it as JPEG")',
        "raise ImageError(UNREADABLE)",
        "tests/face/test_image.py::test_heic_is_named_but_an_avif_may_have_its_brands",
    ),
    Mutation(
        "a frame has at most 36 megapixels",
        "fer_vit/predict/frames.py",
        "    check_size(size, MAX_FRAME_PIXELS)\n    if pixel_format",
        "    if pixel_format",
        "tests/predict/test_frames.py::test_the_size_of_a_frame_is_limited",
    ),
    Mutation(
        "a frame has at most 108 MB",
        "fer_vit/predict/frames.py",
        "    if frame_bytes > MAX_FRAME_BYTES:",
        "    if False:",
        "tests/predict/test_frames.py::test_frames_of_many_bytes_are_not_decoded",
    ),
    Mutation(
        "the highest of 16 bits are taken",
        "fer_vit/face/image.py",
        "    return np.asarray(image >> (used - 8), np.uint8)\n",
        "    return np.asarray(image >> 8, np.uint8)\n",
        "tests/face/test_image.py::test_the_bits_that_are_used_become_eight",
    ),
    # Untrusted models and data
    Mutation(
        "keys of a checkpoint are text or small numbers",
        "fer_vit/pickles.py",
        "            if key not in KEYS:",
        "            if False:",
        "tests/test_pickles.py::test_what_no_checkpoint_needs_is_refused",
    ),
    Mutation(
        "claimed weights take no memory",
        "fer_vit/pickles.py",
        "    if sum(tensor.nbytes for tensor in tensors) > 2 * path.stat().st_size:",
        "    if False:",
        "tests/test_pickles.py::test_what_no_checkpoint_needs_is_refused",
    ),
    Mutation(
        "weights of the hub are verified by sha256",
        "fer_vit/store/hub.py",
        "        if digest != blob.name:",
        "        if False:",
        "tests/store/test_folder.py::test_weights_of_the_hub_have_its_sha256",
    ),
    Mutation(
        "three files come from the hub",
        "fer_vit/store/hub.py",
        "snapshot_download(name, allow_patterns=MODEL_FILES, **options)",
        "snapshot_download(name, **options)",
        "tests/store/test_folder.py::test_hub_models_come_out_of_its_cache",
    ),
    Mutation(
        "the face detector is verified by sha256",
        "fer_vit/face/yunet.py",
        "    if digest != SHA256:",
        "    if False:",
        "tests/face/test_yunet.py::test_a_named_file_counts_by_its_hash",
    ),
    # Interruptions
    Mutation(
        "SIGHUP ends a command",
        "fer_vit/signals.py",
        'SIGNAL_NAMES = ("SIGTERM", "SIGHUP")',
        'SIGNAL_NAMES = ("SIGTERM",)',
        "tests/test_crashes.py::test_signals_leave_no_file_even_two_of_them",
    ),
    Mutation(
        "a second signal does not interrupt the removal",
        "fer_vit/signals.py",
        "        if now - self._last >= REPEAT_SECONDS:\n",
        "        if True:\n",
        "tests/test_crashes.py::test_signals_leave_no_file_even_two_of_them",
    ),
    Mutation(
        "a signal ends a command though a library replaces its exception",
        "fer_vit/signals.py",
        "        if ending.exception is None:\n",
        "        if True:\n",
        "tests/test_crashes.py::test_the_exception_of_a_signal_wins_over_what_a_library_makes_of_it",
    ),
    Mutation(
        "a command that fails leaves no empty folder",
        "fer_vit/files.py",
        "        after.callback(_remove_empty_folders, _missing_parents(path))\n",
        "",
        "tests/test_crashes.py::test_folders_that_were_made_for_a_failed_output_are_removed",
    ),
    Mutation(
        "nohup ignores SIGHUP",
        "fer_vit/signals.py",
        "        if signal.getsignal(number) is not signal.SIG_IGN:\n            signal.signal(number, lambda",
        "        if True:\n            signal.signal(number, lambda",
        "tests/test_crashes.py::test_a_signal_that_nohup_ignores_stays_ignored",
    ),
    Mutation(
        "fit saves the step of a signal",
        "fer_vit/train/checkpoints.py",
        "if isinstance(exception, SIGTERMException):",
        "if False:",
        "tests/train/test_resume.py::test_a_signal_saves_the_step_that_it_came_at",
    ),
    Mutation(
        "all ranks stop at the same step",
        "fer_vit/train/checkpoints.py",
        "trainer.strategy.reduce_boolean_decision(self.signal is not None, all=False)",
        "self.signal is not None",
        "-m slow tests/train/test_distributed.py::test_sigterm_to_one_process_ends_all_at_the_same_step",
    ),
    Mutation(
        "fit exits with the status of the signal",
        "fer_vit/train/run.py",
        "        sys.exit(128 + received)\n",
        "        sys.exit(1)\n",
        "tests/train/test_resume.py::test_a_signal_saves_the_step_that_it_came_at",
    ),
    Mutation(
        "a validation is finished before a signal ends fit",
        "fer_vit/train/checkpoints.py",
        "        self._take_over(trainer)\n        trainer._signal_connector.received_sigterm = False\n",
        "        pass\n",
        "-m slow tests/train/test_resume.py::test_a_signal_saves_the_step_that_it_came_at",
    ),
    Mutation(
        "no process stays behind",
        "fer_vit/processes.py",
        "    Thread(target=_exit_with_parent, daemon=True).start()\n",
        "",
        "tests/test_processes.py::test_a_worker_ends_with_the_main_process",
    ),
    Mutation(
        "readers always find a folder that is replaced",
        "fer_vit/files.py",
        '    if sys.platform != "linux":\n        return False\n    try:',
        "    return False\n    try:",
        "tests/test_crashes.py::test_a_writer_that_is_killed_at_any_call",
    ),
    Mutation(
        "remains in the folder of tables are removed",
        "fer_vit/files.py",
        '            if handle is not None and "old" not in os.listdir(handle):\n'
        "                _remove_open_scratch(scratch, handle)\n",
        "            pass\n",
        "tests/test_crashes.py::test_remains_of_any_target_are_removed_from_a_folder",
    ),
    Mutation(
        "the next run with the same target removes the remains",
        "fer_vit/files.py",
        """    for scratch in path.parent.glob(f".{escape(_stem(path))}.{'[0-9a-f]' * 8}.part"):""",
        "    for scratch in ():",
        "tests/test_crashes.py::test_remains_are_removed_and_folders_in_use_are_not",
    ),
    Mutation(
        "predict removes the remains in the folder of its tables",
        "fer_vit/predict/tables.py",
        "    clear_remains_in(outputs.table)  # also remains of tables that are finished by now\n",
        "",
        "tests/predict/test_tables.py::test_each_rank_predicts_its_own_tables",
    ),
    Mutation(
        "fit removes the remains beside the checkpoint that it resumes",
        "fer_vit/train/checkpoints.py",
        """                clear_remains_of(resumed_folder / f"{callback.filename or 'best'}.ckpt")\n""",
        "                pass\n",
        "tests/train/test_resume.py::test_what_a_killed_run_left_beside_a_checkpoint_is_removed",
    ),
    Mutation(
        "fit names the previous checkpoint on a full disk",
        "fer_vit/train/checkpoints.py",
        "        if kept:\n",
        "        if False:\n",
        "tests/test_crashes.py::test_a_full_disk_keeps_the_checkpoint_before",
    ),
    Mutation(
        "a full disk keeps the file before",
        "fer_vit/files.py",
        '        new = scratch / "new" / _name(path)\n',
        "        new = path\n",
        "tests/test_crashes.py::test_a_full_disk_keeps_what_was_there",
    ),
    Mutation(
        "the table of live ends with a complete row",
        "fer_vit/report/table.py",
        'CompleteWrites(path, "x")',
        'io.FileIO(path, "x")',
        "tests/report/test_table.py::test_a_growing_table_on_a_full_disk_ends_with_a_complete_row",
    ),
    Mutation(
        "the card of finetune is complete or as before",
        "fer_vit/commands/finetune.py",
        "    with atomic_write(card) as new:\n",
        "    if new := card:\n",
        "tests/commands/test_finetune.py::test_a_model_card_is_complete_or_as_before",
    ),
    # Web server
    Mutation(
        "uploads get new names",
        "fer_vit/app/uploads.py",
        '    stem = base.stem.lstrip(" .-") or "photo"\n',
        '    return name\n    stem = ""\n',
        "tests/app/test_server.py::test_uploads_get_safe_and_different_names",
    ),
    Mutation(
        "results are looked up among known names",
        "fer_vit/app/api.py",
        "        path = jobs.results.get(name, {}).get(file)\n",
        "        path = jobs.folder / name / file\n",
        "tests/app/test_server.py::test_no_request_names_a_path",
    ),
    Mutation(
        "the server refuses to connect",
        "fer_vit/app/guard.py",
        '    if event in ("socket.connect", "socket.sendto", "socket.sendmsg") and',
        "    if False and",
        "tests/app/test_server.py::test_a_connection_is_refused",
    ),
    Mutation(
        "the process that decodes refuses to connect, too",
        "fer_vit/app/tasks.py",
        "    sys.addaudithook(refuse_network)\n",
        "",
        "tests/app/test_tasks.py::test_both_processes_refuse_the_network_before_the_first_task",
    ),
    Mutation(
        "the refusal is on before the server answers",
        "fer_vit/commands/app.py",
        "            sys.addaudithook(refuse_network)\n",
        "",
        "tests/app/test_tasks.py::test_both_processes_refuse_the_network_before_the_first_task",
    ),
    Mutation(
        "IDs have 128 random bits",
        "fer_vit/app/jobs.py",
        "token_urlsafe(16)",
        "token_urlsafe(8)",
        "tests/app/test_server.py::test_names_of_results_cannot_be_guessed",
    ),
    Mutation(
        "one job runs at a time",
        "fer_vit/app/jobs.py",
        "            while not turn.is_set():",
        "            while False:",
        "tests/app/test_server.py::test_jobs_wait_for_their_turn_and_end_with_their_client",
    ),
    Mutation(
        "results are removed when the page closes",
        "fer_vit/app/api.py",
        "        jobs.close(name)\n",
        "        pass\n",
        "tests/app/test_server.py::test_a_report_is_kept_until_it_is_closed",
    ),
    Mutation(
        "results are removed when the server ends",
        "fer_vit/files.py",
        "                after.callback(_remove_scratch, scratch)\n",
        "",
        "-m slow tests/attacks/test_app.py::test_a_signal_during_a_job_leaves_no_file",
    ),
    Mutation(
        "the folder has mode 0700",
        "fer_vit/files.py",
        "scratch.mkdir(mode=0o700)",
        "scratch.mkdir(mode=0o755)",
        "tests/test_crashes.py::test_another_user_may_not_enter_a_scratch_folder",
    ),
    Mutation(
        "results are removed after an hour",
        "fer_vit/app/jobs.py",
        "        asyncio.get_running_loop().call_later(KEPT_SECONDS, self.remove, folder.name)\n",
        "",
        "tests/app/test_server.py::test_a_report_is_kept_until_its_time_is_over",
    ),
    Mutation(
        "what SIGKILL leaves is removed at the next start",
        "fer_vit/commands/app.py",
        "    clear_remains_of(stem)  # folders that killed servers have left\n",
        "",
        "-m slow tests/commands/test_app.py::test_what_a_killed_server_leaves_is_removed_at_the_next_start",
    ),
    Mutation(
        "host names are checked",
        "fer_vit/app/guard.py",
        "        if name is None or name[1] not in {*self.hosts, address}:",
        "        if False:",
        "tests/app/test_server.py::test_foreign_hosts_and_sites_reach_no_route",
    ),
    Mutation(
        "Origin is checked",
        "fer_vit/app/guard.py",
        " and self._is_own(origin, host):",
        ":",
        "tests/app/test_server.py::test_foreign_hosts_and_sites_reach_no_route",
    ),
    Mutation(
        "Sec-Fetch-Site is checked",
        "fer_vit/app/guard.py",
        'if site in ("same-origin", "none") and',
        "if",
        "tests/app/test_server.py::test_foreign_hosts_and_sites_reach_no_route",
    ),
    Mutation(
        "responses have the security headers",
        "fer_vit/app/guard.py",
        "                    headers.setdefault(name, value)\n",
        "                    pass\n",
        "tests/app/test_server.py::test_every_response_has_the_security_headers",
    ),
    Mutation(
        "a photo in the app has at most 67 megapixels",
        "fer_vit/app/tasks.py",
        "            check_size(size, MAX_PHOTO)\n",
        "            pass\n",
        "tests/app/test_tasks.py::test_limits_of_pixels",
    ),
    Mutation(
        "all frames in the app have at most 20 billion pixels",
        "fer_vit/app/tasks.py",
        "        if pixels > remaining:",
        "        if False:",
        "tests/app/test_tasks.py::test_clips_have_a_limit_of_pixels_together",
    ),
    Mutation(
        "a job that takes much memory is ended",
        "fer_vit/app/jobs.py",
        "            if resident_memory(self._process.pid) > self._max_memory:",
        "            if False:",
        "tests/app/test_tasks.py::test_a_worker_that_takes_much_memory_is_stopped",
    ),
    Mutation(
        "a job that takes long is ended",
        "fer_vit/app/jobs.py",
        "                    if time.monotonic() > end:",
        "                    if False:",
        "tests/app/test_tasks.py::test_a_worker_that_takes_long_is_stopped",
    ),
    Mutation(
        "uploads are written to the disk as they arrive",
        "fer_vit/app/uploads.py",
        "        self._parser.write(data)\n        if self._field is None:\n            self._append()\n",
        "        self._parser.write(data)\n",
        "tests/app/test_server.py::test_a_file_is_on_the_disk_as_it_arrives",
    ),
    Mutation(
        "results of more than 50 kB are sent from files",
        "fer_vit/app/api.py",
        "        if path.stat().st_size > SMALL_TABLE:",
        "        if False:",
        "tests/app/test_server.py::test_a_large_table_is_sent_from_its_file",
    ),
    Mutation(
        "JSON is parsed one request at a time",
        "fer_vit/app/uploads.py",
        "        async with one_at_a_time:\n",
        "        if True:\n",
        "tests/app/test_server.py::test_one_request_in_json_is_in_memory_at_a_time",
    ),
    Mutation(
        "JSON has at most 16 MB",
        "fer_vit/app/uploads.py",
        "        if self._size > MAX_JSON:",
        "        if False:",
        "tests/app/test_server.py::test_wrong_json_is_refused",
    ),
    Mutation(
        "a request has at most 200 MB",
        "fer_vit/app/guard.py",
        "        if max(self._seen, self._expected) > MAX_REQUEST_BYTES:",
        "        if False:",
        "tests/app/test_server.py::test_an_upload_of_unknown_length_stops_at_the_limit",
    ),
    Mutation(
        "uploads leave 500 MB free",
        "fer_vit/app/guard.py",
        "            if shutil.disk_usage(self._folder).free < SPARE_BYTES + coming:",
        "            if False:",
        "tests/app/test_server.py::test_a_request_leaves_space_on_the_disk",
    ),
    Mutation(
        "a request has at most 20 files",
        "fer_vit/app/uploads.py",
        "        if len(self._names) == MAX_FILES:",
        "        if False:",
        "tests/app/test_server.py::test_a_request_has_limits_of_files_and_of_fields",
    ),
    Mutation(
        "500 jobs arrive, wait or run",
        "fer_vit/app/jobs.py",
        "        return len(self.active) >= MAX_JOBS\n",
        "        return False\n",
        "tests/app/test_server.py::test_an_upload_that_is_still_stored_counts_as_a_job",
    ),
    Mutation(
        "a worker is ended when its client disconnects",
        "fer_vit/app/jobs.py",
        '                    if gone():\n                        yield {"state": "cancelled"}\n'
        "                        return\n",
        "",
        "tests/app/test_tasks.py::test_a_worker_is_stopped_when_its_client_leaves",
    ),
    Mutation(
        "a connection without a request ends",
        "fer_vit/app/server.py",
        "            self.transport.abort()\n",
        "            pass\n",
        "-m slow tests/app/test_attacks.py::test_a_client_that_sends_bytes_slowly_is_disconnected",
    ),
    Mutation(
        "a connection without reading ends",
        "fer_vit/app/server.py",
        "            self.transport.abort()\n",
        "            pass\n",
        "-m slow tests/app/test_attacks.py::test_a_client_that_reads_nothing_is_disconnected",
    ),
    Mutation(
        "an upload brings 200 kB in each 20 s",
        "fer_vit/app/guard.py",
        '            raise HTTPException(408, "The upload is too slow.") from error\n',
        "            return await self._receive()\n",
        "tests/app/test_server.py::test_a_client_that_stops_has_no_credit_for_what_it_sent_before",
    ),
    Mutation(
        "more connections than 640 get 503",
        "fer_vit/app/server.py",
        "len(server.server_state.connections) > MAX_CONNECTIONS",
        "False",
        "tests/app/test_server.py::test_more_connections_than_the_limit_get_503",
    ),
    Mutation(
        "a client that reads slowly gets everything",
        "fer_vit/app/server.py",
        "progress = Progress(self.cycle, self._reads, self.transport.get_write_buffer_size())",
        "progress = Progress(self.cycle, 0, 0)",
        "tests/app/test_server.py::test_a_client_that_reads_steadily_gets_everything",
    ),
    Mutation(
        "an error is a sentence without the value",
        "fer_vit/app/uploads.py",
        "        raise HTTPException(422, describe_errors(error.errors())) from error\n",
        "        raise HTTPException(422, str(error.errors())) from error\n",
        "tests/app/test_server.py::test_wrong_json_is_refused",
    ),
    Mutation(
        "a file that crashes a decoder restarts the worker",
        "fer_vit/app/jobs.py",
        "            if not is_over:\n                self.close()\n                self._start()\n",
        "            pass\n",
        "tests/app/test_tasks.py::test_a_worker_is_stopped_when_its_client_leaves "
        "tests/app/test_tasks.py::test_a_worker_that_died_is_replaced",
    ),
    Mutation(
        "bounds exclude releases of h11 with known problems",
        "pyproject.toml",
        '"h11>=0.16,<1"',
        '"h11>=0.14,<1"',
        "tests/test_security.py::test_every_dependency_has_bounds_that_the_pinned_version_keeps",
    ),
    Mutation(
        "bounds exclude releases of python-multipart with known problems",
        "pyproject.toml",
        '"python-multipart>=0.0.34,<1"',
        '"python-multipart>=0.0.18,<1"',
        "tests/test_security.py::test_every_dependency_has_bounds_that_the_pinned_version_keeps",
    ),
    Mutation(
        "bounds exclude releases of pillow with known problems",
        "pyproject.toml",
        '"pillow>=13,<14"',
        '"pillow>=11.3,<14"',
        "tests/test_security.py::test_every_dependency_has_bounds_that_the_pinned_version_keeps",
    ),
    Mutation(
        "bounds exclude releases with known problems",
        "pyproject.toml",
        '"lightning>=2.6,<2.7,!=2.6.2,!=2.6.3"',
        '"lightning>=2.6,<2.7"',
        "tests/test_security.py::test_every_dependency_has_bounds_that_the_pinned_version_keeps",
    ),
]


def copy_tracked(folder: Path) -> None:
    """Copies the tracked files of the working tree."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name, follow_symlinks=False)


def run_tests(folder: Path, tests: str, log: Path) -> int | None:
    """Runs tests in a fork of this process, which has imported the heavy libraries; returns the status.

    None: they take longer than `LIMIT`.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder)
        sys.path[0] = str(folder)
        sys.dont_write_bytecode = True
        os.environ["PYTHONPATH"] = str(folder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        import_module("tests.helpers.processes").PATIENCE = PATIENCE  # of the copy
        os._exit(pytest.main(["-q", "-x", "-p", "no:xdist", "-W", "ignore", *tests.split()]))
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.2)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def verdict(mutation: Mutation, folder: Path) -> str:
    """Applies a mutation in a copy, runs its tests, and takes it back; returns what happened."""
    path = folder / mutation.file
    before = path.read_text()
    if before.count(mutation.code) != 1:
        return "STALE: the code is not there exactly once"
    path.write_text(before.replace(mutation.code, mutation.replacement))
    log = folder / "log"
    status = run_tests(folder, mutation.tests, log)
    path.write_text(before)
    if status is None:
        return f"failed: it waits for more than {LIMIT} s"
    lines = log.read_text(errors="replace").strip().splitlines()
    if status == pytest.ExitCode.TESTS_FAILED:
        return next((line for line in lines if line.startswith("E  ")), "failed")[:100]
    return f"NOT PROVED (status {status}): {' '.join(lines[-1:])}"


def main() -> None:
    """Prints a line for each sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    words = parser.parse_args().words
    for name in HEAVY:
        import_module(name)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copy_tracked(folder)
        for mutation in MUTATIONS:
            if all(word in mutation.sentence for word in words):
                result = verdict(mutation, folder)
                print(f"{mutation.sentence} | {mutation.tests} | {result}", flush=True)


if __name__ == "__main__":
    main()
