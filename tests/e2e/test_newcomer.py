"""What a newcomer does in a browser: one's own ten lines through the form, watched, given other slots, found in MLflow,
promoted, rolled back, and trained again by an update of the data, with a person's word before the new one counts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from elastic_core.host.mlflow_access import ADMIN
from elastic_core.services.secrets import admin_password
from elastic_core.track import model_registry
from tests.airflow.page.conftest import CHROMIUM
from tests.e2e.platform import PATIENCE, Platform, eventually, project_with_dags, running
from tests.required import lacks

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
SECONDS = 120 * PATIENCE
MODEL = '''import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from elastic_core.train.task import Task

images, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
images = images.float() / 16


class Mine(Task):
    """Digits, by a small network of one's own."""

    metric, metric_mode = "accuracy", "max"

    def model(self):            return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    def optimizer(self, model): return torch.optim.AdamW(model.parameters(), lr=1e-3)
    def dataset(self):          return TensorDataset(images[300:], labels[300:])
    def loss(self, model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y)
    def evaluate(self, model):
        told = model(images[:300]).argmax(1)
        return {"accuracy": (told == labels[:300]).float().mean().item()}
'''
PIPELINE = """from airflow.sdk import Asset
from elastic_airflow.retraining.factory import retraining_dag

dag = retraining_dag(
    "retrain_mine",
    {"name": "mine", "entry_point": "my_models:Mine", "work": {"epochs": 5}, "batch": {"min": 64, "max": 64},
     "slots": {"min": 1, "max": 2}, "segment": {"seconds": 600}},
    assets=[Asset("images_of_today")],
    approval=True,
    is_paused_upon_creation=False,
)
"""


@pytest.fixture(scope="module")
def newcomers() -> Iterator[Platform]:
    """The services over a project with a model and a pipeline of one's own."""
    home = Path(tempfile.mkdtemp(prefix="elastic-newcomer-"))
    own = home / "own"
    own.mkdir()
    (own / "retrain_mine.py").write_text(PIPELINE)
    project = project_with_dags(home / "project", own)
    (project / "my_models.py").write_text(MODEL)
    with running(Platform(home, project=project, tasks="my_models,examples.*")) as platform:
        yield platform


@pytest.fixture(scope="module")
def page(newcomers: Platform) -> Iterator[Page]:
    """Logged in to Airflow; MLflow asks once, for the same."""
    if CHROMIUM is None:
        lacks("chromium", "chromium is not installed: nothing here shows Airflow")
    password = admin_password(newcomers.settings)
    asks = {"username": ADMIN, "password": password, "origin": newcomers.settings.mlflow_page()}
    expect.set_options(timeout=SECONDS * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
        )
        context = browser.new_context(viewport={"width": 1280, "height": 1000}, http_credentials=asks)
        opened = context.new_page()
        opened.set_default_timeout(SECONDS * 1000)
        opened.goto(newcomers.settings.airflow_url())
        opened.get_by_label("Username").fill(ADMIN)
        opened.locator("input[type=password]").fill(password)
        opened.get_by_role("button", name="Sign in").click()
        opened.wait_for_url("**/")
        yield opened
        browser.close()


def submit(page: Page, platform: Platform, name: str, epochs: int) -> None:
    """By the form as it comes up, and what one's own model needs."""
    page.goto(f"{platform.settings.airflow_url()}/dags/elastic_job")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog")
    expect(form.get_by_text("none: only what is filled in")).to_be_visible()
    sections = {
        "Job": {"name": name, "entry_point": "my_models:Mine"},
        "Amount of work": {"work_epochs": str(epochs)},
        "Global batch and learning rate": {"batch_min": "64", "batch_max": "64"},
        "Slots (accelerators)": {"slots_min": "1", "slots_max": "4"},
    }
    for section, fields in sections.items():
        form.get_by_role("button", name=section, exact=True).click()
        if section == "Job":
            expect(form.get_by_text("Digits, by a small network of one's own.")).to_be_visible()
        for field, value in fields.items():
            entry = form.locator(f"[name=element_{field}]")
            entry.fill(value)
            entry.press("Tab")
    form.get_by_role("button", name="Trigger", exact=True).last.click()
    page.wait_for_url("**/runs/**")


def finished(platform: Platform, registered: int) -> None:
    """As many versions of the model are there."""
    eventually(
        lambda: (
            len(platform.control.jobs()) >= registered
            and all(job.results.get("registration") for job in platform.control.jobs())
        ),
        300,
        f"{registered} jobs are trained and registered",
    )


def give_all_slots(page: Page, platform: Platform) -> None:
    """To the only job that trains, by the page of jobs."""
    job_id = eventually(
        lambda: next((job.job_id for job in platform.control.jobs() if job.allocation is not None), None), 120,
        "the job trains",
    )  # fmt: skip
    page.goto(f"{platform.settings.airflow_url()}/plugin/elastic-jobs")
    frame = page.frame_locator("iframe")
    frame.get_by_label(f"Choose {job_id}", exact=True).check()
    frame.get_by_label("Fewest slots").fill("4")
    frame.get_by_role("button", name="Set", exact=True).click()
    expect(frame.locator("#steering [role=status]")).to_have_text("1 job set: at least 4 slots.")
    expect(frame.locator(f"tr[data-id='{job_id}']")).to_contain_text("4 / 4")
    taken = [segment.allocation for segment in platform.control.segments(job_id) if segment.allocation is not None]
    assert [allocation.num_slots for allocation in taken][-1] == 4 > taken[0].num_slots


def promote(page: Page, platform: Platform, version: int) -> None:
    """By the page of models, which is open."""
    frame = page.frame_locator("iframe")
    frame.get_by_role("button", name=f"Promote version {version}").click()
    frame.get_by_role("button", name="Yes, promote").click()
    eventually(lambda: champion_of(platform) == str(version), 60, f"version {version} is the champion")
    expect(frame.locator(f"tr[data-version='{version}']")).to_contain_text("champion")


def champion_of(platform: Platform) -> str | None:
    found = model_registry.champion(platform.control, platform.settings, "mine")
    return None if found is None else found.version


def test_ones_own_model_from_the_form_to_a_champion_that_is_trained_again(newcomers: Platform, page: Page) -> None:
    airflow = newcomers.settings.airflow_url()
    submit(page, newcomers, "mine", epochs=1)
    page.goto(f"{airflow}/plugin/elastic")
    frame = page.frame_locator("iframe")
    expect(frame.get_by_text("my_models (1 file").first).to_be_visible()
    finished(newcomers, 1)

    submit(page, newcomers, "mine", epochs=200)
    give_all_slots(page, newcomers)
    finished(newcomers, 2)
    page.goto(f"{airflow}/plugin/elastic-models")
    expect(frame.get_by_role("heading", level=3)).to_have_text("mine")
    expect(frame.locator("tr[data-version='2']")).to_contain_text("champion")
    promote(page, newcomers, 1)
    frame.get_by_role("button", name="Roll back to version 2").click()
    frame.get_by_role("button", name="Yes, roll back").click()
    expect(frame.locator(".said")).to_contain_text("Version 2 is the champion; before it was 1.")

    page.goto(f"{newcomers.settings.mlflow_page()}/#/models/mine/versions/2")
    expect(page.get_by_text("@ champion")).to_be_visible()
    expect(page.get_by_text("Inputs (1)")).to_be_visible()
    expect(page.get_by_text("Outputs (1)")).to_be_visible()

    page.goto(f"{airflow}/plugin/elastic-models")
    promote(page, newcomers, 1)  # which five more passes make better
    page.goto(f"{airflow}/assets")
    expect(page.get_by_text("images_of_today")).to_be_visible()
    expect(page.get_by_text("elastic_segment")).to_have_count(0)
    page.get_by_role("row", name="images_of_today").get_by_label("Create Event").click()
    page.get_by_role("dialog").get_by_role("button", name="Create Event").click()
    finished(newcomers, 3)
    page.goto(f"{airflow}/required_actions?response_received=false")
    page.get_by_role("link", name="Shall version 3 of model mine become champion?").click()
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("response successful")).to_be_visible()
    page.goto(f"{airflow}/plugin/elastic-models")
    expect(frame.locator("tr[data-version='3']")).to_contain_text("accuracy")
    eventually(lambda: champion_of(newcomers) == "3", 120, "the approved version is the champion")
