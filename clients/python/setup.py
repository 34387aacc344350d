"""What pyproject.toml cannot say: how a build begins."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class Afresh(build_py):
    """Builds into an empty folder: what an earlier build left there would be installed as well."""

    def run(self) -> None:
        # A folder that somebody chose may have other things in it.
        if Path(self.build_lib).parts[:1] == ("build",):
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": Afresh})
