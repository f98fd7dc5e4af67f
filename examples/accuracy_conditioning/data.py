"""Answers of simulated students: a task, how accurate the student is, and what the student wrote.

A row has a sequence of digits, a category (copy, reverse, add one, sort) and an accuracy in [0, 1]. Each
digit of the answer is right with that probability, and random otherwise. A model that is told the accuracy
can predict how the answers are spread. A few rows come from a form where people typed a count instead of a
share, such as 80,000.
"""

import torch

DIGITS, LENGTH, CATEGORIES = 10, 12, 4
TYPED_COUNT = 80_000.0


def right_answers(questions, categories):
    answers = torch.stack(
        [questions, questions.flip(1), (questions + 1) % DIGITS, questions.sort(1).values], 1
    )
    return answers[torch.arange(len(questions)), categories]


def make_rows(count, seed, typed_counts=0.02):
    """Return questions, categories, accuracies and answers; a share of the accuracies are counts."""
    noise = torch.Generator().manual_seed(seed)
    questions = torch.randint(DIGITS, (count, LENGTH), generator=noise)
    categories = torch.randint(CATEGORIES, (count,), generator=noise)
    accuracy = torch.rand(count, 1, generator=noise)
    right = torch.rand(count, LENGTH, generator=noise) < accuracy
    wrong_answers = torch.randint(DIGITS, (count, LENGTH), generator=noise)
    answers = torch.where(right, right_answers(questions, categories), wrong_answers)
    typed = torch.rand(count, 1, generator=noise) < typed_counts
    return questions, categories, torch.where(typed, TYPED_COUNT, accuracy), answers


def make_batches(seed, size=64):
    while True:
        seed += 1_000
        yield make_rows(size, seed)
