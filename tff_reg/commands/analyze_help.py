"""The help text of `bin/analyze`; the settings' lines come from their dataclasses."""

import textwrap

from tff_reg.analysis import curvature, plane
from tff_reg.settings import as_text, settings_of

_WIDTH = 88


def _flags_of(kind, but=()):
    """Returns the help lines for the settings of a dataclass."""
    placeholders = {int: "N", float: "X", str: "NAME"}
    lines = []
    for each in settings_of(kind):
        if each.name in but:
            continue
        flag = f"  --{each.name}={placeholders[each.type]}"
        text = f"{each.help} [{as_text(each.default)}]"
        lines += textwrap.wrap(
            text,
            _WIDTH,
            initial_indent=f"{flag:26}",
            subsequent_indent=" " * 26,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


TEXT = f"""\
bin/analyze cost --processes=NAME[+NAME...],... | --run_dir=DIR,... [--csv=FILE]
  The cost of a training step of each method for a client, counted in the graph that
  runs: 10^6 multiply-adds per example, forward and backward; 10^6 stored weights; and
  10^6 bytes received and sent per round.

  --run_dir=DIR,...       runs; their costs are written to RUN_DIR/analysis/cost.csv too
  --processes=NAME,...    methods, or combinations such as feddyn+man
  --model=NAME            network [resnet56]
  --norm=NAME             norm of the network, group or batch [batch]
  --num_classes=N         number of classes [10]
  --image_shape=H,W,C     shape of an image [32,32,3]
  --csv=FILE              file for the table at full precision
  Hyperparameters that change the cost, such as --gradaug_subnetworks, apply to the
  methods that have them.

bin/analyze partition --run_dir=DIR | --task=NAME --partition=NAME ...
  The examples of each client: a table, and partition.csv and partition.png. Of a run,
  or of the data flags of bin/run (--recipe, --task, --data_dir, --partition,
  --concentration, --num_clients, --seed, ...).

  --output_dir=DIR        directory of the files [RUN_DIR/analysis, or this directory]

bin/analyze hessian --run_dir=DIR,... [--output_dir=DIR]
  Eigenvalues of largest magnitude (lambda_max is the first, and may be negative) and
  trace of the Hessian of the server's model, on training examples; H_N, H_D, drift and
  agreement of the clients' models after one more round of training each. Writes
  hessian.json, hessian.csv, eigenvalues.csv, density.csv and clients.csv to
  RUN_DIR/analysis, and pictures of several eigenvalues and of the density. The same
  command resumes an interrupted analysis.

{_flags_of(curvature.Settings)}
  --weights=NAME          weights to analyse: server, all_clients (the mean of all
                          clients' last models) or best (the server's in the best round
                          of a run with --keep_best). all_clients and best exclude
                          --clients, and write to RUN_DIR/analysis/NAME [server]
  --output_dir=DIR        directory of one picture of all runs [one picture per run, in
                          RUN_DIR/analysis]

bin/analyze landscape --run_dir=DIR,... [--output_dir=DIR]
  The loss on a plane through the weights of the server's model: landscape.csv in
  RUN_DIR/analysis, and landscape.png with several runs side by side on one scale. The
  same command resumes an interrupted analysis.

{_flags_of(plane.Settings, but=("examples", "seed"))}
  --highest=X             upper end of the scale [the largest loss]
  --examples=N, --seed=N, --weights=NAME, --output_dir=DIR   as above

bin/analyze singular_values --run_dir=DIR,... [--weights=NAME] [--output_dir=DIR]
  Singular values of the classifier of the server's model: singular_values.csv, .png
  (UniVarFL's Fig. 1)."""
