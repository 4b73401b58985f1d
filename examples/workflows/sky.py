"""Tiles of a generated sky: FITS images (FITS standard 4.0) in gnomonic projection, each with its own centre and background.

The same seed gives the same stars wherever a tile lies, so overlapping tiles differ only in noise and background.
"""

import math

import numpy

CENTRE_DEG = (150.0, 2.0)
PIXEL_DEG = 1 / 3600
OVERLAP = 0.2


def grid(pixels, rows, columns):
    """Centres (right ascension, declination in degrees) of adjacent tiles that overlap by a fifth."""
    step = pixels * PIXEL_DEG * (1 - OVERLAP)
    return [(CENTRE_DEG[0] - (c - (columns - 1) / 2) * step, CENTRE_DEG[1] + (r - (rows - 1) / 2) * step)
            for r in range(rows) for c in range(columns)]


def header(width, height, centre):
    """Cards of an image's geometry: those of a FITS header, and of Montage's template of a mosaic."""
    cards = {
        "NAXIS": 2, "NAXIS1": width, "NAXIS2": height, "CTYPE1": "'RA---TAN'", "CTYPE2": "'DEC--TAN'",
        "CRVAL1": centre[0], "CRVAL2": centre[1], "CRPIX1": (width + 1) / 2, "CRPIX2": (height + 1) / 2,
        "CDELT1": -PIXEL_DEG, "CDELT2": PIXEL_DEG, "CROTA2": 0.0, "EQUINOX": 2000.0,
    }
    return [f"{name:<8}= {value:<20}" if isinstance(value, str) else f"{name:<8}= {value!r:>20}" for name, value in cards.items()]


def mosaic_header(pixels, rows, columns):
    """Text of the template of a mosaic of all tiles."""
    width, height = (math.ceil(pixels * ((1 - OVERLAP) * (n - 1) + 1)) + 20 for n in (columns, rows))
    return "\n".join(["SIMPLE  = T", "BITPIX  = -64", *header(width, height, CENTRE_DEG), "END", ""])


def tile(pixels, centre, seed, number):
    """The bytes of a tile's file."""
    noise = numpy.random.default_rng([seed, number])
    y, x = numpy.mgrid[0:pixels, 0:pixels]
    image = noise.normal(0, 1, (pixels, pixels)) + noise.uniform(20, 80) + (noise.uniform(-9, 9) * x + noise.uniform(-9, 9) * y) / pixels
    for px, py, light in stars(pixels, centre, seed):
        low_x, low_y = max(0, int(px) - 12), max(0, int(py) - 12)
        part = numpy.s_[low_y:max(low_y, int(py) + 13), low_x:max(low_x, int(px) + 13)]
        image[part] += light * numpy.exp(-((x[part] - px) ** 2 + (y[part] - py) ** 2) / 6)
    cards = ["SIMPLE  =                    T", "BITPIX  =                  -32", *header(pixels, pixels, centre), "END"]
    head = "".join(f"{card:<80}" for card in cards).encode()
    data = image.astype(">f4").tobytes()
    return head + b" " * (-len(head) % 2880) + data + bytes(-len(data) % 2880)


def stars(pixels, centre, seed):
    """Stars near a tile: (x, y) in its pixels from 0, and brightness."""
    sky = numpy.random.default_rng(seed)
    ra, dec = (sky.uniform(c - 1, c + 1, 20_000) for c in CENTRE_DEG)
    light = 30 / sky.power(1.5, 20_000)
    # Gnomonic projection about the tile's centre (Calabretta and Greisen 2002, section 5.1.3).
    a, d, d0 = numpy.radians(ra - centre[0]), numpy.radians(dec), math.radians(centre[1])
    depth = math.sin(d0) * numpy.sin(d) + math.cos(d0) * numpy.cos(d) * numpy.cos(a)
    px = (pixels - 1) / 2 - numpy.degrees(numpy.cos(d) * numpy.sin(a) / depth) / PIXEL_DEG
    py = (pixels - 1) / 2 + numpy.degrees((math.cos(d0) * numpy.sin(d) - math.sin(d0) * numpy.cos(d) * numpy.cos(a)) / depth) / PIXEL_DEG
    near = (px > -12) & (px < pixels + 12) & (py > -12) & (py < pixels + 12)
    return zip(px[near], py[near], light[near])
