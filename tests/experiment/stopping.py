"""Runs that end before their last round."""

from tff_reg.experiment.rounds import progress


class StopHere(Exception):
    """Stands for the end of the process."""


class StopsAfter(progress.Progress):
    """Ends the run after a given round's row was written."""

    def __init__(self, last_round):
        self._last_round = last_round

    def after_round(self, round_num, row):
        if round_num == self._last_round:
            raise StopHere
