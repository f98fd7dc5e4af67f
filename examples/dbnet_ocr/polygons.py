"""Polygons from a probability map, and their H-mean: the harmonic mean of precision and recall."""

import numpy as np
from pages import offset
from scipy import ndimage
from shapely import MultiPoint, Polygon

UNCLIP = 1.4  # a word is its kernel moved outwards by area * 1.4 / length


def find_words(probability, least=0.5):
    """Return the rectangles around the connected parts of a map, moved outwards to the words' size."""
    labels, _ = ndimage.label(probability > least, np.ones((3, 3)))
    words = []
    for part, place in enumerate(ndimage.find_objects(labels), 1):
        inside = labels[place] == part
        if inside.sum() < 6 or probability[place][inside].mean() < 0.6:
            continue
        kernel = enclose(inside, place[1].start, place[0].start)
        outline = offset(kernel.exterior.coords[:-1], kernel.area * UNCLIP / kernel.length)
        words.append(Polygon(outline).minimum_rotated_rectangle)
    return words


def enclose(inside, left, top):
    """Return the smallest rectangle, in any direction, around the pixels of a mask."""
    rows = np.flatnonzero(inside.any(1))
    first, last = inside.argmax(1)[rows], inside.shape[1] - inside[:, ::-1].argmax(1)[rows]
    edges = zip([*first, *last], [*rows] * 2, strict=True)
    corners = [(left + x, top + y + i) for x, y in edges for i in (0, 1)]
    return MultiPoint(corners).minimum_rotated_rectangle


def overlap(one, other):
    shared = one.intersection(other).area
    return shared / (one.area + other.area - shared)


def h_mean(maps, outlines):
    """Return H-mean, precision and recall; a word is found if a polygon overlaps half of both."""
    hits = found = wanted = 0
    for probability, truth in zip(maps, outlines, strict=True):
        words, left = find_words(probability), [Polygon(outline) for outline in truth]
        found, wanted = found + len(words), wanted + len(left)
        for word in words:
            best = max(left, key=lambda other: overlap(word, other), default=None)
            if best is not None and overlap(word, best) > 0.5:
                left.remove(best)
                hits += 1
    precision, recall = hits / max(found, 1), hits / wanted
    return {"hmean": 2 * hits / (found + wanted), "precision": precision, "recall": recall}
