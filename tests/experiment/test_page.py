"""`report.html`: what is in it, and that it needs nothing else."""

import html.parser
import re

from tests.experiment.compared import write_run
from tff_reg import curves, experiment, scores, tables
from tff_reg.experiment.report import comparison, page


class Parsed(html.parser.HTMLParser):
    """The text of a page, and its tags; each is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self._open = [], [], []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_a_report_has_the_table_the_curves_the_clients_and_the_origin(tmp_path):
    runs = [
        write_run(
            tmp_path / f"{process}{seed}",
            [0.1, final],
            process=process,
            seed=seed,
            man_strength=0.1,
            digest_of_data="da7a",
            versions={"python": "3.11"},
        )
        for process, finals in {"fedavg": [0.5, 0.51], "man": [0.6, 0.611]}.items()
        for seed, final in enumerate(finals)
    ]
    clients = [
        {"client": c, "examples": 8 + c, "classes": 2, "entropy_bits": 1.0}
        | {"accuracy": 0.2 * c, "finetuned_accuracy": 0.9}
        for c in range(3)
    ]
    (runs[0] / "clients.csv").write_text(tables.to_csv(clients))
    table = comparison.tabulate(runs)
    made, again = (
        comparison.contents(table, "A < B", "bin/compare --x='1 2'") for _ in range(2)
    )
    text = made[page.FILE]
    assert text == again[page.FILE]
    parsed = Parsed(text)
    assert parsed.text.count("A < B") == 2
    assert "<strong>60.55 ± 0.78</strong>" in text
    assert "+10.05 [9.41, 10.69]" in parsed.text
    assert "Protocol: task=digits, partition=dirichlet_" in parsed.text
    assert "<br>\n- man&#x27;s own: man_strength" in text
    for word in ("FedAvg 50.5 %", "MAN 60.5 %", "FedAvg, finetuned", "da7a", "Holm"):
        assert word in parsed.text, word
    assert "seed 0, 8 to 10 examples, 2 to 2 classes, 1 to 1 entropy" in parsed.text
    assert "bin/compare --x='1 2'" in parsed.text and str(runs[3]) in parsed.text
    assert parsed.tags.count("svg") == 2
    # Nothing is loaded, and nothing runs.
    assert not {"script", "link", "img", "iframe", "object", "a"} & {*parsed.tags}
    assert not re.search(r"src=|@import|url\((?!#)|\son\w+=", text)


def test_forty_methods_of_5000_rounds_are_less_than_a_megabyte():
    rounds = [*range(1, 5001)]
    shares = [0.5 + 0.4 * (n % 7) / 7 for n in rounds]
    drawn = [curves.Curve(f"m{n}", rounds, shares, shares) for n in range(40)]
    assert 10_000 < len(page.curves_of(drawn, scores.Score())) < 1_000_000
    assert page.curves_of([], scores.Score()) == page.clients_of({}) == ""


def test_a_run_has_a_report(tmp_path):
    run = write_run(tmp_path / "run", [0.25, 0.5])
    comparison.report_run(run, "bin/run")
    parsed = Parsed((run / page.FILE).read_text("utf-8"))
    assert "FedAvg: Test accuracy on digits" in parsed.text
    experiment.RunDirectory(run).delete_results(and_analyses=False)
    assert not (run / page.FILE).exists()
