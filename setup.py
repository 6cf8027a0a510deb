"""What pyproject.toml cannot say: tff_reg.pth is installed beside the package."""

import os

import setuptools
from setuptools.command.build_py import build_py


class _BuildWithPth(build_py):
    def run(self):
        super().run()
        self.copy_file("tff_reg.pth", os.path.join(self.build_lib, "tff_reg.pth"))

    def get_source_files(self):
        return [*super().get_source_files(), "tff_reg.pth"]


setuptools.setup(cmdclass={"build_py": _BuildWithPth})
