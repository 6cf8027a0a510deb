"""What pyproject.toml cannot say of the package: `tff_reg.pth` goes beside it."""

import setuptools
from setuptools.command import build_py


class BuildPy(build_py.build_py):
    """Adds the line that loads our finder when somebody imports TFF first."""

    def run(self):
        super().run()
        self.copy_file("tff_reg.pth", self.build_lib)


setuptools.setup(cmdclass={"build_py": BuildPy})
