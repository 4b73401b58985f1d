"""Montage: a mosaic of the sky from many tiles, by the programs of Debian's package `montage`, each as a Dask task on a mount.

    mProjectPP ─┬─ mImgtbl ─ mOverlaps ─┐                     (tables: one task each)
                └─ mDiff ─ mFitplane ─ fits.tbl ─ mBgModel ─┐
                └───────────────────────────── mBackground ─┴─ mAdd ─ mViewer

Debian has no mConcatFit; `concat_fits` writes the same table. WOSS ran the same stages (its figure 67, table 16).
"""

import hashlib
import math
import re
import subprocess

import sky
from flow import Task

ROWS, COLUMNS = 4, 4
FIT = ("plus", "minus", "a", "b", "c", "crpix1", "crpix2", "xmin", "xmax", "ymin", "ymax", "xcenter", "ycenter", "npixel", "rms",
       "boxx", "boxy", "boxwidth", "boxheight", "boxang")


def program(root, *words):
    """A task: runs a program of Montage in the run's directory; returns its output."""
    done = subprocess.run(words, cwd=root, capture_output=True, text=True)
    if 'stat="ERROR"' in done.stdout or done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def stage_in(root, path, *about):
    (root / path).write_bytes(sky.tile(*about))


def write(root, path, text):
    (root / path).write_text(text)


def read_rows(root, path):
    """Rows of a table of Montage (IPAC format), by column."""
    lines = (root / path).read_text().splitlines()
    names = next(line for line in lines if line.startswith("|")).strip("|").split("|")
    return [dict(zip((name.strip() for name in names), line.split())) for line in lines if line[0] not in "|\\"]


def fit(root, difference, target):
    """The plane that fits a difference, as the program printed it."""
    write(root, target, program(root, "mFitplane", difference))


def concat_fits(root, overlaps, fits, target):
    """One table of all planes, for mBgModel."""
    lines = ["|" + "|".join(f"{name:>14}" for name in FIT) + "|"]
    for overlap, path in zip(overlaps, fits):
        said = dict(re.findall(r"(\w+)=([-+.\deE]+)", (root / path).read_text()))
        said |= {"plus": overlap["cntr1"], "minus": overlap["cntr2"]}
        if "a" in said:
            lines.append(" " + " ".join(f"{said[name]:>14}" for name in FIT))
    write(root, target, "\n".join(lines) + "\n")


def stage_out(root, *paths):
    """Digest of the workflow's output."""
    return [hashlib.blake2b((root / path).read_bytes(), digest_size=16).hexdigest() for path in paths]


def montage(flow, size):
    """A mosaic of 4 by 4 tiles, each of a quarter of `size` bytes."""
    pixels = math.isqrt(size // 16)
    hosts, tiles = flow.site.hosts, [f"tile{i:02}.fits" for i in range(ROWS * COLUMNS)]
    for name in ("raw", "proj", "diff", "tables", "out"):
        flow.directory(name, placement="local")
    flow.directory("fits", placement="collocate:fits")
    flow.directory("corr", placement="collocate:mosaic")

    # The tiles come in where they are stored: neighbours on one host, in every way of running.
    centres = sky.grid(pixels, ROWS, COLUMNS)
    home = lambda i: hosts[i * len(hosts) // len(tiles)]
    flow.run([Task(stage_in, f"raw/{tile}", pixels, centres[i], flow.seed, i, host=home(i)) for i, tile in enumerate(tiles)])
    flow.run([Task(write, "tables/region.hdr", sky.mosaic_header(pixels, ROWS, COLUMNS), host=hosts[0])])

    raw, proj, corr = ([f"{name}/{tile}" for tile in tiles] for name in ("raw", "proj", "corr"))
    flow.run([Task(program, "mProjectPP", r, p, "tables/region.hdr", reads=[r]) for r, p in zip(raw, proj)])
    # In this order, so that the numbers in all later tables are those of `tiles`.
    names = "\n".join([f"| {'fname':<12} |", *(f"  {tile:<12}  " for tile in tiles), ""])
    flow.run([Task(write, "tables/names.tbl", names, reads=["tables/region.hdr"])])
    flow.run([Task(program, "mImgtbl", "-t", "tables/names.tbl", "proj", "tables/images.tbl", reads=["tables/names.tbl"])])
    flow.run([Task(program, "mOverlaps", "tables/images.tbl", "tables/diffs.tbl", reads=["tables/images.tbl"])])
    (overlaps,) = flow.run([Task(read_rows, "tables/diffs.tbl", reads=["tables/diffs.tbl"])])

    pairs = [(f"proj/{o['plus']}", f"proj/{o['minus']}", f"diff/{o['diff']}") for o in overlaps]
    flow.run([Task(program, "mDiff", a, b, d, "tables/region.hdr", reads=[a, b]) for a, b, d in pairs])
    fits = [d.replace("diff/", "fits/") + ".txt" for _, _, d in pairs]
    flow.run([Task(fit, d, f, reads=[d]) for (_, _, d), f in zip(pairs, fits)])
    flow.run([Task(concat_fits, overlaps, fits, "tables/fits.tbl", reads=fits)])
    flow.run([Task(program, "mBgModel", "tables/images.tbl", "tables/fits.tbl", "tables/corrections.tbl", reads=["tables/fits.tbl"])])

    (corrections,) = flow.run([Task(read_rows, "tables/corrections.tbl", reads=["tables/corrections.tbl"])])
    planes = {int(row["id"]): (row["a"], row["b"], row["c"]) for row in corrections}
    flow.run([Task(program, "mBackground", p, c, *planes.get(i, "000"), reads=[p]) for i, (p, c) in enumerate(zip(proj, corr))])
    flow.run([Task(program, "mAdd", "-p", "corr", "tables/images.tbl", "tables/region.hdr", "out/mosaic.fits", reads=corr)])
    picture = ("mViewer", "-gray", "out/mosaic.fits", "-2s", "max", "gaussian-log", "-out", "out/mosaic.png")
    flow.run([Task(program, *picture, reads=["out/mosaic.fits"])])
    return flow.run([Task(stage_out, "out/mosaic.fits", "out/mosaic.png", reads=["out/mosaic.fits"])])[0]
