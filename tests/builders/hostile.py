"""Hostile kinds of code, as statements to run anywhere: what a network may do to the interpreter, and to whoever reports
how it ended. Each is harmless outside of a sandbox, too, apart from the process that runs it.
"""

#: Exceptions whose own methods and attributes are foreign code. `{raises}` ends each of them.
_EXCEPTIONS = {
    "str raises": "def __str__(self): raise RuntimeError('no text')",
    "str exits": "def __str__(self): raise SystemExit(3)\n    __repr__ = __str__",
    "str is no text": "def __str__(self): return 5",
    "str is a subclass of str": "def __str__(self): return S('\\ud800')",
    "str is huge": "def __str__(self): return 'A' * (1 << 31)",
    "str of lone surrogates and NUL": "def __str__(self): return '\\ud800 lone \\x00'",
    "eq raises": "def __eq__(self, other): raise KeyboardInterrupt('eq')\n    __hash__ = None",
    "hash raises": "def __hash__(self): raise KeyboardInterrupt('hash')",
    "bool raises": "def __bool__(self): raise KeyboardInterrupt('bool')",
    "class raises": "__class__ = property(lambda self: [][1])",
    "traceback raises": "__traceback__ = property(lambda self: [][1])",
    "cause raises": "__cause__ = property(lambda self: [][1])",
    "causes never end": "__cause__ = __context__ = property(lambda self: E())\n    def __eq__(self, other): return False\n"
    "    __hash__ = None",
    "getattribute raises": "def __getattribute__(self, name): raise KeyboardInterrupt(name)",
    "errno raises": "errno = property(lambda self: [][1])",
}
_EXCEPTION = """
class S(str):
    def __getitem__(self, key): raise KeyboardInterrupt('getitem')
    split = __len__ = encode = __getitem__
class E({base}):
    {body}
raise E('x')
"""

#: Statements that raise by themselves.
_RAISES = {
    "type's name raises": (
        "class M(type):\n    @property\n    def __name__(cls): raise KeyboardInterrupt('name')\n"
        "class E(Exception, metaclass=M): pass\nraise E('x')"
    ),
    "type's name is odd": "raise type('E\\n<b>' * 1000, (Exception,), {})('x')",
    "ring of causes": "a, b = ValueError('a'), ValueError('b')\na.__cause__, b.__cause__ = b, a\nraise a",
    "a long chain of causes": (
        "e = None\nfor i in range(100_000):\n    f = ValueError(i)\n    f.__cause__ = e\n    e = f\nraise e"
    ),
    "frames of odd files": (
        "exec(compile('raise ValueError(1)', '\\udc80' * 10_000 + '.py', 'exec'), {'__name__': 'x', '__loader__': 5})"
    ),
    "a group": "raise BaseExceptionGroup('g', [KeyboardInterrupt(), SystemExit(2)])",
    "an exit with an odd code": (
        "class C:\n    def __str__(self): raise KeyboardInterrupt('code')\n    __repr__ = __format__ = __str__\n"
        "raise SystemExit(C())"
    ),
    "missing: __main__": "raise ModuleNotFoundError('x', name='__main__')",
    "missing: a NUL": "raise ModuleNotFoundError('x', name='\\x00')",
    "missing: no text": "e = ModuleNotFoundError('x')\ne.name = 5\nraise e",
    "missing: a list": "raise ModuleNotFoundError('x', name=['torch'])",
    "missing: dots": "raise ModuleNotFoundError('x', name='..')",
    "missing: relative": "raise ModuleNotFoundError('x', name='.a')",
    "missing: a path": "raise ModuleNotFoundError('x', name='..\\ud800/../x')",
    "missing: below a module that has no parts": "raise ModuleNotFoundError('x', name='math.inner.most')",
    "missing: long": "raise ModuleNotFoundError('x', name='a' * 100_000)",
}

#: Statements after which the interpreter is not what it was; what follows them may fail anywhere.
_INTERPRETER = {
    "profile raises": "import sys\ndef f(*a): raise KeyboardInterrupt('profile')\nsys.setprofile(f)",
    "profile raises late": (
        "import sys\nn = [0]\ndef f(*a):\n    n[0] += 1\n    if n[0] > {late}: raise KeyboardInterrupt('profile')\n"
        "sys.setprofile(f)"
    ),
    "trace raises": "import sys\ndef f(*a): raise KeyboardInterrupt('trace')\nsys.settrace(f)",
    "threads' hooks raise": (
        "import threading\ndef f(*a): raise KeyboardInterrupt('hook')\n"
        "threading.setprofile(f); threading.settrace(f); threading.excepthook = f"
    ),
    "excepthook raises": "import sys\ndef f(*a): raise KeyboardInterrupt('hook')\nsys.excepthook = sys.unraisablehook = f",
    "excepthook exits": "import os, sys\nsys.excepthook = sys.unraisablehook = lambda *a: os._exit(0)",
    "atexit": "import atexit, os\natexit.register(os._exit, 3)",
    "audit hook raises": "import sys\ndef f(*a): raise KeyboardInterrupt('audit')\nsys.addaudithook(f)",
    "alarms raise": (
        "import signal\ndef f(*a): raise KeyboardInterrupt('alarm')\nsignal.signal(signal.SIGALRM, f)\n"
        "signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)"
    ),
    "the end is ignored": "import signal\nfor s in (15, 24, 1, 2): signal.signal(s, signal.SIG_IGN)",
    "no stack is left": "import sys\nsys.setrecursionlimit(40)",
    "builtins raise": (
        "import builtins\ndef f(*a, **k): raise KeyboardInterrupt('builtin')\n"
        "for n in ('len', 'str', 'isinstance', 'issubclass', 'type', 'repr', 'getattr', 'id', 'range', 'memoryview', 'BaseException'):\n"
        "    setattr(builtins, n, f)"
    ),
    "the end is replaced": (
        'import json, os\njson.dumps = lambda *a, **k: \'{"status":"ok","value":"lie","error":""}\'\n'
        "os.write = lambda fd, b: len(b)\nos._exit = lambda c: None"
    ),
    "JSON is replaced": (
        "import json, json.encoder\ndef f(*a, **k): raise KeyboardInterrupt('json')\n"
        "json._default_encoder = json.JSONEncoder = json.encoder.c_make_encoder = f"
    ),
    "collections raise": "import gc\ndef f(*a): raise KeyboardInterrupt('gc')\ngc.callbacks.append(f)\ngc.set_threshold(1)",
    "files are closed": "import os\nos.closerange(0, 2000)",
    "modules are gone": "import sys\nfor name in list(sys.modules): sys.modules[name] = None",
    "the folder is gone": "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)",
    "warnings are errors": "import warnings\nwarnings.simplefilter('error')\nwarnings.warn('w')",
    "threads go on": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
}


def list_hostile() -> dict[str, str]:
    raises = {
        f"{name} ({base})": _EXCEPTION.format(base=base, body=body)
        for name, body in _EXCEPTIONS.items()
        for base in ("Exception", "ModuleNotFoundError", "OSError", "BaseException")
    }
    hooks = {name: text for name, text in _INTERPRETER.items() if "{late}" not in text}
    late = {
        f"profile raises after {n}": _INTERPRETER["profile raises late"].replace("{late}", str(n))
        for n in range(1, 60, 3)
    }
    return raises | _RAISES | hooks | late
