"""The click logs are the same for ever and follow their law, Criteo's format is read, and the model learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from elastic_core.errors import UserError
from elastic_core.train.parallel.stages import names_of_layers
from examples.ctr import CTR, CTRParams, area_under_roc, generated, read_criteo, rows_by_category, zipf

SMALL = {"categories": 3, "rows": 200, "dim": 4, "width": 8, "samples": 3000}


def test_a_sample_is_the_same_whichever_samples_come_with_it():
    many, few = generated(0, 100, 3, 200, 1.1), generated(40, 10, 3, 200, 1.1)
    assert all(torch.equal(a[40:50], b) for a, b in zip(many.tensors, few.tensors, strict=True))


@given(st.integers(2, 10_000), st.sampled_from([0.5, 1.0, 1.1, 2.0]))
def test_categories_are_in_range_and_the_first_are_the_most_frequent(size, skew):
    drawn = zipf(np.linspace(0, 1, 5000, endpoint=False), size, skew)
    assert drawn.min() == 0
    assert drawn.max() < size
    counts = np.bincount(drawn, minlength=2)
    assert counts[0] >= counts[1]


@given(st.integers(1, 30), st.integers(0, 1000))
def test_each_category_has_rows_of_its_own(categories, more):
    rows = 2 * categories + more
    counts = rows_by_category(rows, categories)
    assert [offset for offset, _ in counts] == [sum(size for _, size in counts[:i]) for i in range(categories)]
    assert sum(size for _, size in counts) == rows
    assert min(size for _, size in counts) >= 2


def test_too_few_rows_are_refused():
    with pytest.raises(UserError, match="20 categories need 40 rows at least, not 30"):
        rows_by_category(30, 20)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.booleans()), min_size=2, max_size=40))
def test_the_area_is_scikit_learns(pairs):
    scores, clicks = (torch.tensor([float(pair[i]) for pair in pairs]) for i in (0, 1))
    if 0 < clicks.sum() < len(pairs):
        assert area_under_roc(scores, clicks) == pytest.approx(roc_auc_score(clicks, scores))
    else:
        assert area_under_roc(scores, clicks) == 0.5


def test_it_learns_what_decides_about_clicks():
    task = CTR(CTRParams(**SMALL, optimizer="adagrad"))
    torch.manual_seed(0)
    model = task.model()
    before, optimizer = task.evaluate(model)["auc"], task.optimizer(model)
    categories, numbers, clicks = task.dataset().tensors
    for _ in range(2):
        for rows in torch.arange(3000).split(100):
            optimizer.zero_grad()
            task.loss(model, [categories[rows], numbers[rows], clicks[rows]]).backward()
            optimizer.step()
    assert task.evaluate(model)["auc"] > max(0.6, before)


def test_its_layers_are_its_whole_model():
    task = CTR(CTRParams(**SMALL))
    model = task.model()
    assert names_of_layers(model, task.layers(model)) == ("embeddings", "interaction", "mlp.0", "mlp.1", "head")


def line(click: int, number: str, category: str) -> str:
    return "\t".join([str(click), *[number] * 13, *[category] * 26])


def test_criteos_format_is_read_and_every_tenth_line_held_out(tmp_path):
    path = tmp_path / "clicks.txt"
    path.write_text("\n".join(line(i % 2, "" if i == 1 else str(i), "" if i == 1 else f"{i:08x}") for i in range(20)))
    trained, held_out = (read_criteo(str(path), 260, held_out=flag) for flag in (False, True))
    categories, numbers, clicks = trained.tensors
    assert (len(trained), len(held_out)) == (18, 2)
    assert clicks[:4].tolist() == [0, 1, 0, 1]
    assert numbers[3].tolist() == pytest.approx([np.log(4)] * 13)
    assert numbers[1].tolist() == [0] * 13
    assert (categories // 10).tolist() == [list(range(26))] * 18  # each category's values in its own rows
    assert len({tuple(row) for row in categories.tolist()}) > 5
    model = CTR(CTRParams(**SMALL, criteo=str(path))).model()
    assert model(categories % 200, numbers).shape == (18,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1\t2", "line 1: 2 fields between tabs, and Criteo's format has 40"),
        (line(1, "5", "xyz"), "line 1: .*Numbers are decimal, categories hexadecimal"),
        ("", "has no line to train on"),
    ],
)
def test_other_files_are_refused(tmp_path, text, words):
    (tmp_path / "clicks.txt").write_text(text)
    with pytest.raises(UserError, match=words):
        read_criteo(str(tmp_path / "clicks.txt"), 260, held_out=False)
