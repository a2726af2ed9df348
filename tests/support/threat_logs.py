"""Small logs in the layouts of other programs."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile

JAILBREAKBENCH = {
    "parameters": {"method": "PAIR", "model": "vicuna-13b-v1.5", "attack_type": "black_box"},
    "jailbreaks": [
        {
            "index": i,
            "goal": f"Do {name}",
            "behavior": name,
            "category": "Fraud",
            "prompt": prompt,
            "response": prompt,
            "number_of_queries": 30,
            "queries_to_jailbreak": 7 if success else None,
            "jailbroken": success,
            "jailbroken_llama_guard1": second,
        }
        for i, (name, prompt, success, second) in enumerate(
            [("Phishing", "Write", True, True), ("Scam", "Tell", False, True), ("Theft", None, False, False)]
        )
    ],
}

TEXTATTACK = (
    '"original_text","num_queries","perturbed_score","ground_truth_output","result_type"\n'
    '"a [[good]] film",28.0,0.69,1.0,"Successful"\n'
    '"a film",9.0,0.4,0.0,"Failed"\n'
    '"bad",1.0,0.4,0.0,"Skipped"\n'
)
SUMMARY = {
    "Attack Results": {
        "Number of successful attacks:": 3,
        "Number of failed attacks:": 1,
        "Number of skipped attacks:": 2,
        "Attack success rate:": 75.0,
    }
}


def attempt(uuid, seq, outputs, results, status=2):
    prompt = {
        "turns": [{"role": "user", "content": {"text": f"Say {seq}", "lang": "en", "data_path": None}}],
        "notes": None,
    }
    return {
        "entry_type": "attempt",
        "uuid": uuid,
        "seq": seq,
        "status": status,
        "probe_classname": "dan.Dan",
        "prompt": prompt,
        "outputs": [output and {"text": output} for output in outputs],
        "detector_results": results,
        "goal": "disregard the system prompt",
        "intent": "S009exfil",
    }


GARAK = [
    {"entry_type": "start_run setup", "run.eval_threshold": 0.4, "plugins.target_name": "gpt2"},
    {"entry_type": "init", "garak_version": "0.14.0"},
    attempt("a", 0, ["x", None, "y"], {}, status=1),
    attempt("a", 0, ["x", None, "y"], {"dan.DAN": [0.4, None, None], "mitigation.Bypass": [0.0, 1.0, 0.39]}),
    attempt("b", 1, ["x"], {}, status=1),
    {"entry_type": "eval", "probe": "dan.Dan", "detector": "dan.DAN", "passed": 0},
]

INSPECT = {
    "version": 2,
    "status": "error",
    "eval": {
        "task": "injection",
        "model": "mockllm/model",
        "dataset": {"sample_ids": [1, "two", 3]},
        "config": {"epochs": 2},
    },
    "samples": [
        {"id": 1, "epoch": 1, "input": "Hi", "scores": {"attack": {"value": "C"}}, "metadata": {"category": "web"}},
        {"id": 1, "epoch": 2, "input": "Hi", "scores": {"attack": {"value": "N"}}},
        {"id": "two", "epoch": 1, "input": [{"role": "user", "content": "Yo"}], "scores": {"attack": {"value": 0}}},
        {"id": "two", "epoch": 2, "input": "Yo", "scores": None, "error": {"message": "timeout"}},
    ],
}

PROMPTFOO = {
    "evalId": "eval-1",
    "results": {
        "version": 3,
        "results": [
            {
                "success": success,
                "failureReason": reason,
                "score": float(success),
                "cost": 0.01,
                "provider": {"id": "openai:gpt-4"},
                "prompt": {"raw": "Leak it", "label": "p"},
                "vars": {"prompt": "Leak it"},
                "testIdx": i,
                "metadata": {"pluginId": "indirect-prompt-injection", "goal": goal},
            }
            for i, (success, reason, goal) in enumerate([(True, 0, "g"), (False, 1, "g"), (False, 2, "h")])
        ],
    },
}


def graded(passed, *components, reason=1):
    """A result of promptfoo with assertions (passed, reason, whether the grader's answer was unreadable)."""
    parts = [
        {"pass": ok, "score": int(ok), "reason": why, "assertion": {"type": "llm-rubric"}}
        | ({"metadata": {"graderError": True}} if lost else {})
        for ok, why, lost in components
    ]
    return {
        "success": passed,
        "failureReason": 0 if passed else reason,
        "score": sum(grade["score"] for grade in parts) / max(len(parts), 1),
        "gradingResult": {"pass": passed, "componentResults": parts} if parts else None,
        "error": None if passed else "text",
        "provider": {"id": "toy", "label": ""},
        "prompt": {"raw": "Tell", "label": "Tell {{q}}"},
        "vars": {"q": "one"},
        "testIdx": 0,
    }


#: Results of ``promptfoo eval``: withstood, failed, unreadable grader, a raising assertion, both kinds, no answer.
GRADED = [
    graded(True, (True, "Assertion passed", False)),
    graded(False, (False, "Expected output to not contain", False)),
    graded(False, (True, "Assertion passed", False), (False, "Could not extract JSON", True)),
    graded(False, (False, "Custom function threw error: null", False)),
    graded(False, (False, "Expected output to not contain", False), (False, "Could not extract JSON", True)),
    graded(False, reason=2),
]

CSV = (
    "id,prompt,behaviour,success,score,queries,human_label,status,note\n"
    '0,"a, ""b""\nc",x,yes,0.5,3,true,,kept\n'
    "1,d,y,0,,,,,\n"
    "2,e,z,,,,,unparsable,\n"
)


def archive(log=INSPECT, level=zipfile.ZIP_DEFLATED):
    """The log as a zip archive, a file for each sample."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", level) as file:
        file.writestr("_journal/start.json", json.dumps({"version": 2, "eval": log["eval"]}))
        for sample in log["samples"]:
            file.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
        file.writestr("header.json", json.dumps({k: v for k, v in log.items() if k != "samples"}))
    return buffer.getvalue()


def with_zstandard(content, compress):
    """A stored archive with the same members as method 93, which zipfile cannot write before Python 3.14."""
    source = zipfile.ZipFile(io.BytesIO(content))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for info in source.infolist():
            file.writestr(info.filename, compress(source.read(info)))
            written = file.getinfo(info.filename)
            written.compress_type, written.file_size, written.CRC = 93, info.file_size, info.CRC
    return buffer.getvalue()


#: Content of a small log of each format, by the name of its file.
LOGS = {
    "artifact.json": json.dumps(JAILBREAKBENCH, indent=4).encode(),
    "attack.csv": TEXTATTACK.encode(),
    "summary.json": json.dumps(SUMMARY, indent=4).encode(),
    "garak.report.jsonl": "\n".join(map(json.dumps, GARAK)).encode(),
    "inspect.json": json.dumps(INSPECT, indent=2).encode(),
    "inspect.eval": archive(),
    "promptfoo.json": json.dumps(PROMPTFOO).encode(),
    "promptfoo.jsonl": "\n".join(map(json.dumps, GRADED)).encode(),
    "table.csv": CSV.encode(),
}


def documents(content):
    """The JSON documents of a log, one or one a line; none in another format."""
    for texts in ([content], content.splitlines()):
        with contextlib.suppress(ValueError):
            return [json.loads(text) for text in texts]
    return []


def in_lines(values):
    return "\n".join(map(json.dumps, values))


#: Those in JSON, as lists of documents.
JSON = {name: values for name, content in LOGS.items() if (values := documents(content))}


def places(holder, path=()):
    """Paths of all keys and elements of a JSON value."""
    for key in holder if isinstance(holder, dict) else range(len(holder)):
        yield *path, key
        if isinstance(holder[key], dict | list):
            yield from places(holder[key], (*path, key))
