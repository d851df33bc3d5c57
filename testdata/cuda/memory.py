# Memory of the stand-in's GPU, for the code of tests. They execute this file. "library" is the path of the stand-in.
import ctypes

cuda = ctypes.CDLL(library)
at = ctypes.c_uint64()
length = 0


def call(name, *args):
    code = getattr(cuda, name)(*args)
    assert code == 0, f"{name} returned {code}"


def begin(size, text="variables"):
    """Takes bytes of the GPU, and stores a text in them."""
    global length
    context, length = ctypes.c_void_p(), len(text)
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
    call("cuMemcpyHtoD_v2", at, text.encode(), ctypes.c_size_t(length))


def held():
    """Returns the text."""
    text = ctypes.create_string_buffer(length)
    call("cuMemcpyDtoH_v2", text, at, ctypes.c_size_t(length))
    return text.raw.decode()
