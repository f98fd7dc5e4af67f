"""Pages with words in any direction, drawn by Pillow in its own font, and the maps that DBNet learns.

Three of a hundred words are not in the labels, as in every collection that people have labelled.
``python pages.py`` saves the first pages of a seed as ``data/pages.png``, to look at them.
"""

import functools
import math
import random
import string
from pathlib import Path

import numpy as np
import pyclipper
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage
from shapely import Polygon, affinity, box

HEIGHT, WIDTH = 64, 96
SHRINK = 0.4  # the kernel of a word: its outline moved inwards by area * (1 - 0.4**2) / length
UNLABELLED = 0.03


def offset(outline, distance):
    """Move an outline outwards, or inwards if the distance is negative; nothing may be left of it."""
    clipper = pyclipper.PyclipperOffset()
    points = [(round(100 * x), round(100 * y)) for x, y in outline]
    clipper.AddPath(points, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    moved = clipper.Execute(100 * distance)
    return [(x / 100, y / 100) for x, y in max(moved, key=len)] if moved else None


def draw_word(rng, page, taken):
    """Draw one word where there is room for it; return its outline, or None."""
    word = "".join(rng.choices(string.ascii_letters, k=rng.randint(3, 6)))
    font = ImageFont.load_default(rng.randint(12, 18))
    left, top, right, bottom = font.getbbox(word)
    ink = Image.new("L", (math.ceil(right) + 2, math.ceil(bottom) + 2))
    ImageDraw.Draw(ink).text((0, 0), word, font=font, fill=255)
    angle, corner = (
        rng.uniform(-25, 25),
        (rng.randint(-4, WIDTH - 30), rng.randint(-2, HEIGHT - 18)),
    )
    center = ink.width / 2, ink.height / 2
    ink = ink.rotate(angle, Image.Resampling.BILINEAR, expand=True)
    shift = ink.width / 2 - center[0] + corner[0], ink.height / 2 - center[1] + corner[1]
    shape = affinity.rotate(box(left, top, right, bottom), -angle, origin=center)
    shape = affinity.translate(shape, *shift)
    if not box(0, 0, WIDTH, HEIGHT).contains(shape) or any(map(shape.intersects, taken)):
        return None
    page.paste(rng.randint(100, 255), corner, ink)
    taken.append(shape)
    return list(shape.exterior.coords)[:-1]


def draw_page(rng):
    """Return a page as an image, and the outlines of the words that are labelled."""
    page, taken, outlines = Image.new("L", (WIDTH, HEIGHT), rng.randint(0, 60)), [], []
    pen = ImageDraw.Draw(page)
    for _ in range(3):
        ends = [(rng.randrange(WIDTH), rng.randrange(HEIGHT)) for _ in range(2)]
        pen.line(ends, fill=rng.randint(60, 200))
    for _ in range(12):
        outline = draw_word(rng, page, taken)
        if outline is not None and rng.random() >= UNLABELLED:
            outlines.append(outline)
    return np.asarray(page, np.float32) / 255, outlines


def draw_maps(outlines):
    """Return the kernels of the words, the thresholds around their outlines, and where those count."""
    kernels, mask = Image.new("L", (WIDTH, HEIGHT)), Image.new("L", (WIDTH, HEIGHT))
    thresholds = np.full((HEIGHT, WIDTH), 0.3, np.float32)
    for outline in outlines:
        shape = Polygon(outline)
        distance = shape.area * (1 - SHRINK**2) / shape.length
        for image, moved in (
            (kernels, offset(outline, -distance)),
            (mask, offset(outline, distance)),
        ):
            if moved:
                ImageDraw.Draw(image).polygon(moved, fill=1)
        line = Image.new("L", (WIDTH, HEIGHT), 1)
        ImageDraw.Draw(line).polygon(outline, outline=0)
        away = ndimage.distance_transform_edt(np.asarray(line)) / distance
        thresholds = np.maximum(thresholds, 0.7 - 0.4 * np.minimum(away, 1)).astype(np.float32)
    return np.stack([np.asarray(kernels, np.float32), thresholds, np.asarray(mask, np.float32)])


@functools.cache
def pages(count, seed):
    """Return images with noise, their maps, and the outlines of their words."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    drawn = [draw_page(rng) for _ in range(count)]
    images = torch.stack([torch.from_numpy(image) for image, _ in drawn])[:, None]
    images += 0.05 * torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    maps = torch.from_numpy(np.stack([draw_maps(outlines) for _, outlines in drawn]))
    return images, maps, [outlines for _, outlines in drawn]


def save_sample(file):
    images, maps, _ = pages(4, 0)
    rows = torch.cat([torch.cat(list(part), 1) for part in (images[:, 0], *maps.unbind(1))])
    file.parent.mkdir(exist_ok=True)
    Image.fromarray((255 * rows.clamp(0, 1)).byte().numpy()).save(file)


if __name__ == "__main__":
    save_sample(Path(__file__).parent / "data" / "pages.png")
