"""Runs the jupyter_kernel_test suite on kernels behind the gateway.

The suite starts a local kernel by default. jupyter_server's GatewayKernelManager and GatewayKernelClient therefore
replace its kernel manager and client. At the end of each class the gateway and the kernel confirm that they were used.
"""
import sys
import unittest

import jupyter_kernel_test
from jupyter_client.utils import run_sync

import remote
from checks import KERNELS, TOKEN, URL


class Remote(jupyter_kernel_test.KernelTests):
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [{"text": "isinst", "matches": {"isinstance"}}]
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n"]
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise RuntimeError('wanted')"
    code_execute_result = [{"code": "1+2+3", "result": "6"}, {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"}]
    code_display_data = [{"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))",
                          "mime": "text/html"}]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"

    @classmethod
    def setUpClass(cls):
        cls.km, cls.kc = remote.start(cls.kernel_name)

    @classmethod
    def tearDownClass(cls):
        try:
            remote.assert_through_gateway(cls.km, cls.kc)
        finally:
            cls.kc.stop_channels()
            run_sync(cls.km.shutdown_kernel)()


class Result(unittest.TextTestResult):
    """Prints the lines that checks.py describes."""

    def name(self, test):
        method = getattr(test, "_testMethodName", str(test))
        return f"{type(test).__name__}.{method}"

    def addSuccess(self, test):
        super().addSuccess(test)
        print(f"PASS {self.name(test)}", flush=True)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"SKIP {self.name(test)}: {reason}", flush=True)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        print(f"FAIL {self.name(test)}: {' '.join(str(err[1]).split())[:500]}", flush=True)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            print(f"FAIL {self.name(test)}: {subtest._subDescription()} {' '.join(str(err[1]).split())[:500]}", flush=True)

    def addError(self, test, err):
        super().addError(test, err)
        print(f"FAIL {self.name(test)}: {err[0].__name__} {' '.join(str(err[1]).split())[:500]}", flush=True)


# Features that a kernel lacks, with or without a gateway: xpython's history has no search for unique entries.
EXCEPT = {
    "xpython": {"supported_history_operations": ("tail",)},
}


def main():
    remote.point_at(URL, TOKEN)
    suite = unittest.TestSuite()
    for kernel in KERNELS:
        changes = {"kernel_name": kernel, **EXCEPT.get(kernel, {})}
        suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(type(f"Suite_{kernel}", (Remote,), changes)))
    result = unittest.TextTestRunner(resultclass=Result, verbosity=0).run(suite)
    ran = result.testsRun - len(result.skipped)
    if ran < 10 * len(KERNELS):
        print(f"FAIL suite: only {ran} tests ran")
        return 1
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
