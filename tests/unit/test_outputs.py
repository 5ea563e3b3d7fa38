"""The search of all outputs of integration tests finds what is planted (tests/support/outputs.py)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra.local.folders import ROOT

PASSWORD = "correct horse; battery"  # noqa: S105
FINDINGS = {
    "card": "no customer CARD17",
    "key": f"key=lk_0123456789ab_{43 * 'k'}",
    "token": "{'token': 'eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm5hIn0.c2lnbmF0dXJl'}",
    "password": f"login with {PASSWORD}",
    "webhook": "whsec_c2VjcmV0IQ==",
}
HARMLESS = {"others": "9265846829 CARD171 1770000000 id=0123456789ab lk_0123456789ab"}
WAYS = ("log", "stderr", "inherited")

TESTS = """
import subprocess, sys
import pytest
from schemas.topics import LOYALTY_BALANCES
from services.messaging.avro import encoder
from tests.support.builders import IDS, balance

TEXTS = {texts}

@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("way", {ways})
def test_a_process(name, way, tmp_path):
    topic, card, record = balance("CARD17", "1.00")
    encoder(topic, IDS)(record)
    command = [sys.executable, "-S", "-c", "import sys; print(sys.argv[1], file=sys.stderr)", TEXTS[name]]
    with (tmp_path / "process.log").open("ab") as log:
        stderr = dict(log=log, stderr=subprocess.PIPE, inherited=None)[way]
        subprocess.run(command, stderr=stderr, check=True)
"""


@pytest.mark.program
def test_what_is_planted_in_an_output_fails_the_test(tmp_path: Path) -> None:
    """A card that a test encodes, an API key, a token, a password and a webhook secret are found in each output. A card
    that the test did not use, a number and the id of a key are not found.
    """
    file = tmp_path / "integration" / "test_new.py"
    file.parent.mkdir()
    file.write_text(TESTS.format(texts=FINDINGS | HARMLESS, ways=WAYS))
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rE", "-p", "tests.support.outputs", str(file)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "LOYALTY_KAFKA_SASL_PASSWORD_FILE": str(password)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    expected = {f"{way}-{name}" for way in WAYS for name in FINDINGS}
    assert expected == set(re.findall(r"^ERROR .*test_a_process\[(.*?)\]", run.stdout, re.MULTILINE)), run.stdout
    assert f"{len(WAYS) * len(FINDINGS | HARMLESS)} passed" in run.stdout
