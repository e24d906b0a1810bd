"""The trigger form: the job spec's JSON schema as flat fields, and the way back from a filled form to a spec.

One field per leaf of `JobSpec`; sections follow its nested models, and a section for each task has its parameters
(`catalogue.task_params`). Every field may stay empty: an empty field takes the value of the goal or preset chosen, and
without one the default. Knows no web framework: a field is a name, a default and the JSON schema keywords that a form
renders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elastic_core.errors import UserError
from elastic_core.spec.catalogue.entry_catalogue import EntryListed, ParamListed
from elastic_core.spec.catalogue.task_params import chosen_params, is_param, param_fields, section_of, with_fields
from elastic_core.spec.goals import GOALS
from elastic_core.spec.inputs.dotted import put
from elastic_core.spec.job import JobSpec, parse_job_spec
from elastic_core.text import near_miss

NO_PRESET = NO_GOAL = "none"
NO_PRESETS = (
    "There are none: the folder `examples/specs` of the project's (`ELASTIC_PROJECT`) holds no JSON file. "
    "`elastic init` writes some."
)
UNCHOSEN = "not chosen"  # how a field that may stay empty shows that, where it is a list to choose from
PRESET, GOAL, WHOLE_SPEC, JOB_ID, WARM_START = "preset", "goal", "spec", "job_id", "warm_start"

SECTIONS = {
    "": "Job",
    "work": "Amount of work",
    "batch": "Global batch and learning rate",
    "slots": "Slots (accelerators)",
    "layouts": "Layouts (how the model is cut over the slots)",
    "servers": "Parameter servers",
    "comm": "Communication (what ranks exchange)",
    "placement": "Placement (layers of the model on several types of slots)",
    "segment": "Segments",
    "checkpoints": "Checkpoints",
    "scheduling": "Scheduling",
    "advanced": "Advanced",
}
# Leaves of the top level that belong to another section than "Job".
PLACES = {"priority": "scheduling", "queue": "scheduling", "deadline": "scheduling", "audit": "advanced",
          "prefer": "scheduling", "budget": "scheduling", "sync": "servers",
          "placement": "placement", "placement_floor": "placement", "placement_profile": "placement",
          "seed": "advanced", "precision": "advanced", "registered_model": "advanced"}  # fmt: skip
# Help for leaves whose name alone does not tell a newcomer what they do.
HELP = {
    "name": "Lower-case letters, digits and '-'. Also the name of the MLflow model, unless another is given.",
    "entry_point": "What is trained: a class or a function, as module:name.",
    "params": "Parameters of the task's own code, as JSON. Those that a preset gives count for its own task alone.",
    "work.epochs": "Passes over the data set. Give this or samples, not both.",
    "work.samples": "Samples to train on in all. Give this or epochs, not both.",
    "work.measure": "What epochs and samples count: samples that are read, or progress, which is what they are worth "
    "at the base batch (AdaScale): a larger batch then takes fewer steps and reads more, at most as many passes as "
    "`elastic jobs estimate` says.",
    "work.max_samples": "With measure progress: the job ends here in any case.",
    "work.patience": "End when the metric was not better than its best in so many passes in a row.",
    "batch.min": "Smallest global batch (samples of one step over all slots) that the platform may choose.",
    "batch.max": "Largest global batch that the platform may choose.",
    "batch.learning_rate_rule": "How the learning rate follows the global batch.",
    "slots.min": "The job waits rather than run on fewer slots.",
    "slots.max": "The job never gets more slots than this.",
    "layouts.tensor": "Slots that may share each layer: the task must admit it. [1]: only whole layers.",
    "layouts.pipeline": "Stages that the layers may be spread over: the task must admit it. [1]: no pipeline.",
    "layouts.sharded": "Whether data-parallel slots hold shards of the state (FSDP) instead of whole replicas.",
    "sync": "allreduce: slots sum gradients among themselves. parameter_server: some slots keep the parameters for the "
    "others. either: the platform chooses.",
    "servers.min": "Slots of the job that are parameter servers, at least, where it has any.",
    "servers.max": "The same at most.",
    "comm.algorithm": "allreduce is the exact sum; the others send less and are not exact. auto tries those "
    "that allow admits, but for onebit_adam and qadam.",
    "comm.allow": "The most that the exchange may be: exact; lossy, compressed gradients; averaging, averaged weights "
    "besides; partial, gradients of a layer by some of the slots. auto chooses by time alone: with averaging it "
    "ends at what exchanges the least, and the same samples may teach less. Empty: what the algorithm needs, and for "
    "auto exact, which leaves it no choice.",
    "comm.interval": "Steps between two averages of weights, for the algorithms that average them",
    "comm.warmup_steps": "Steps by the exact sum before onebit_adam or qadam freezes Adam's variance.",
    "placement": "none: slots of one type. auto and exact: the layers where training costs least, on several types at "
    "once. rl_lstm: by a learnt plan.",
    "placement_floor": "Samples a second that a placed job wants at least. Empty: no floor.",
    "placement_profile": "Times of the layers by type of slot, as JSON. Empty: timed on a processor at submission.",
    "comm.hierarchical": "Exchange within each node first, and then between one rank of each.",
    "comm.stage_ratio": "By how much activations between stages of a pipeline may shrink. Empty: not at all.",
    "comm.guard": "Where training diverges under an inexact exchange, go on by the exact sum.",
    "segment.seconds": "How long a segment trains before the platform decides again.",
    "segment.steps": "The same in steps; whichever comes first.",
    "checkpoints.interval_steps": "Checkpoint every so many steps inside a segment as well.",
    "checkpoints.keep_last": "Newest checkpoints that are kept.",
    "checkpoints.keep_best": "Best checkpoints, by the task's metric, that are kept besides.",
    "queue": "One of the cluster's queues: the job uses its guaranteed share. Empty: none, it uses what is left.",
    "deadline": "When the job should be done; the page warns when it will be late.",
    "prefer": "time: done as soon as the pool allows; cost: on the slots that cost least and meet the deadline.",
    "budget": "Most that the job may spend, in the currency of the nodes' prices; it is not stopped for it.",
    "seed": "Same seed, same data order and initial weights.",
    "precision": "Arithmetic of the forward and backward pass.",
}
_AMOUNTS = (("work", "epochs"), ("work", "samples"))  # of which a spec has exactly one


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One field. `path` is where its value goes in the spec; () for the fields about the form itself."""

    name: str
    path: tuple[str, ...]
    default: Any
    schema: Mapping[str, Any] = field(default_factory=dict)  # JSON schema keywords, title, description, section


def form_fields(
    presets: Mapping[str, Mapping[str, Any]], entries: Sequence[EntryListed] = ()
) -> tuple[FormField, ...]:  # fmt: skip
    """The form's fields, in the order of their sections. `presets` are whole job specs by name; `entries`: what a job
    may name, to be offered and described."""
    schema = JobSpec.model_json_schema()
    leaves = [_leaf(path, leaf, schema) for path, leaf in _leaves(schema, schema, ())]
    order = list(SECTIONS.values())
    leaves.sort(key=lambda item: order.index(item.schema["section"]))
    told = {"entry_point": _offered, "params": _parameters} if entries else {}
    leaves = [told[leaf.name](leaf, entries) if leaf.name in told else leaf for leaf in leaves]
    params = [FormField(name=name, path=(), default=None, schema=of) for name, of in param_fields(entries, UNCHOSEN)]
    at = next((at for at, leaf in enumerate(leaves) if leaf.schema["section"] == SECTIONS["advanced"]), len(leaves))
    return (_preset(presets), _goal(), *leaves[:at], *params, *leaves[at:], *_about())


def spec_from_form(
    values: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]], entries: Sequence[EntryListed] = ()
) -> JobSpec:  # fmt: skip
    """The spec that a filled form means. `entries`: what a job may name, for parameters of tasks that are filled in.

    Raises `UserError` naming every field that is wrong and what is allowed.
    """
    known = {item.name: item for item in form_fields(presets)}
    for name in values.keys() - known.keys():
        if is_param(name):
            continue
        near = near_miss(name, known, cutoff=0.6)
        hint = f"did you mean {near!r}?" if near else f"known fields: {', '.join(sorted(known))}"
        raise UserError(f"the form has no field {name!r}: {hint}")
    if values.get(WHOLE_SPEC):
        return parse_job_spec(values[WHOLE_SPEC])
    spec = _copy(_chosen(values.get(PRESET) or NO_PRESET, presets))
    if values.get("entry_point") not in (None, "", spec.get("entry_point")):
        spec.pop("params", None)  # they are those of the preset's task
    for path, value in _given(_wanted(values.get(GOAL) or NO_GOAL), ()):
        put(spec, path, value)
    filled = [(item.path, values.get(item.name)) for item in known.values() if item.path]
    filled = [(path, value) for path, value in filled if value is not None and value != []]
    if any(path in _AMOUNTS for path, _ in filled):  # the one filled in replaces the preset's, whichever that is
        for _, amount in _AMOUNTS:
            spec.get("work", {}).pop(amount, None)
    for path, value in filled:
        put(spec, path, value)
    for param, value in chosen_params(values, spec.get("entry_point"), entries).items():
        put(spec, ("params", param), value)
    return parse_job_spec(spec)


def _leaves(
    node: Mapping[str, Any], root: Mapping[str, Any], path: tuple[str, ...]
) -> list[tuple[tuple[str, ...], Any]]:
    leaves: list[tuple[tuple[str, ...], Any]] = []
    for name, child in node["properties"].items():
        target = root["$defs"][child["$ref"].rpartition("/")[2]] if "$ref" in child else child
        if "properties" in target:
            leaves += _leaves(target, root, (*path, name))
        else:
            leaves.append(((*path, name), child))
    return leaves


def _leaf(path: tuple[str, ...], node: Mapping[str, Any], root: Mapping[str, Any]) -> FormField:
    options = [option for option in node.get("anyOf", [node]) if option.get("type") != "null"]
    keywords = dict(options[0])
    given = keywords.pop("default", node.get("default"))
    keywords.pop("title", None)
    key = ".".join(path)
    notes = [HELP.get(key, node.get("description", keywords.get("description", ""))).rstrip(".")]
    if given is None and path[-1] in (root["required"] if len(path) == 1 else ()):
        notes.append("Needed, unless a preset gives it")
    elif given not in (None, [], {}):
        notes.append(f"Empty: as chosen at the top, else {given}")
    keywords["description"] = ". ".join(note for note in notes if note)
    if "enum" in keywords:
        keywords["enum"] = [*keywords["enum"], None]
        keywords["values_display"] = {"null": UNCHOSEN}
    keywords["type"] = [keywords["type"], "null"]
    section = PLACES.get(key, path[0] if len(path) > 1 else "")
    keywords.update(title=path[-1].replace("_", " ").capitalize(), section=SECTIONS[section])
    return FormField(name="_".join(path), path=path, default=None, schema=keywords)


def _preset(presets: Mapping[str, Mapping[str, Any]]) -> FormField:
    names = [NO_PRESET, *sorted(presets)]
    schema = {
        "type": "string",
        "enum": names,
        "values_display": {name: _title(name, presets) for name in names},
        "title": "Preset",
        "description_md": _lines(
            "A whole job to start from. Every field that is filled in below replaces its value.",
            [f"**{name}**: {_summary(presets[name])}" for name in sorted(presets)] or [NO_PRESETS],
        ),
    }
    return FormField(name=PRESET, path=(), default=NO_PRESET, schema=schema)


def _goal() -> FormField:
    schema = {
        "type": "string",
        "enum": [NO_GOAL, *GOALS],
        "values_display": {NO_GOAL: "none: by the defaults"} | {name: name.replace("-", " ") for name in GOALS},
        "title": "Goal",
        "description_md": _lines(
            "What matters most. Its values replace the preset's; every field that is filled in below replaces its own.",
            [f"**{name.replace('-', ' ')}**: {goal.about} ({_words(goal.gives)})" for name, goal in GOALS.items()],
        ),
    }
    return FormField(name=GOAL, path=(), default=NO_GOAL, schema=schema)


def _title(name: str, presets: Mapping[str, Mapping[str, Any]]) -> str:
    return f"{name} ({presets[name].get('entry_point', '')})" if name in presets else "none: only what is filled in"


def _summary(spec: Mapping[str, Any]) -> str:
    """All that a preset gives, as `entry_point`, then `part.leaf value`."""
    rest = {key: value for key, value in spec.items() if key not in ("name", "entry_point")}
    return ", ".join(filter(None, [str(spec.get("entry_point", "")), _words(rest)]))


def _words(part: Mapping[str, Any]) -> str:
    leaves = [(".".join(path), value) for path, value in _given(part, ())]
    return ", ".join(f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in leaves)


def _given(node: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _given(value, (*path, key))
        else:
            yield (*path, key), value


def _offered(leaf: FormField, entries: Sequence[EntryListed]) -> FormField:
    lines = [f"**{entry.entry_point}**{': ' if entry.about else ''}{entry.about}" for entry in entries]
    schema = {**leaf.schema, "examples": [entry.entry_point for entry in entries]}
    words = schema.pop("description")
    return replace(leaf, schema={**schema, "description_md": _lines(f"{words}. Found here:", lines)})


def _parameters(leaf: FormField, entries: Sequence[EntryListed]) -> FormField:
    lines = [
        f"**{entry.entry_point}**: {'; '.join(_parameter(param) for param in entry.params)}"
        for entry in entries
        if entry.params
    ]
    schema = dict(leaf.schema)
    words = schema.pop("description")
    sections = [f"*{section_of(entry.entry_point)}*" for entry in with_fields(entries)]
    words += f". What is filled in below, under {' or '.join(sections[:2])}, replaces it" if sections else ""
    return replace(leaf, schema={**schema, "description_md": _lines(f"{words}.", lines)})


def _parameter(param: ParamListed) -> str:
    given = "needed" if param.default is None else f"else {param.default}"
    return f"**{param.name}** ({param.kind}, {given}){' ' if param.about else ''}{param.about}"


def _lines(head: str, lines: Sequence[str]) -> str:
    """Markdown. Names are bold and not code, whose background covers the lines beside it in Airflow's form."""
    return "\n".join([head, "", *(f"- {line}" for line in lines)]) if lines else head


def _about() -> tuple[FormField, ...]:
    section = SECTIONS["advanced"]
    whole = {
        "type": ["object", "null"],
        "title": "Whole spec",
        "section": section,
        "description": "A job spec as JSON, used instead of everything above: for scripts and the REST API.",
    }
    job_id = {
        "type": ["string", "null"],
        "title": "Job id",
        "section": section,
        "description": "Empty for a new job. An id that exists: attach to that job, nothing above is used.",
    }
    warm_start = {
        "type": ["string", "null"],
        "title": "Warm start",
        "section": section,
        "description": "Address of a checkpoint whose weights a new job starts from. Empty: from the task's own.",
    }
    return (
        FormField(name=WARM_START, path=(), default=None, schema=warm_start),
        FormField(name=WHOLE_SPEC, path=(), default=None, schema=whole),
        FormField(name=JOB_ID, path=(), default=None, schema=job_id),
    )


def _chosen(name: Any, presets: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    if name == NO_PRESET:
        return {}
    if not isinstance(name, str) or name not in presets:
        raise UserError(f"no preset {name!r}: there are {', '.join(sorted(presets)) or 'none'}")
    return presets[name]


def _wanted(name: Any) -> Mapping[str, Any]:
    if name == NO_GOAL:
        return {}
    if not isinstance(name, str) or name not in GOALS:
        raise UserError(f"no goal {name!r}: there are {', '.join(GOALS)}")
    return GOALS[name].gives


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value
