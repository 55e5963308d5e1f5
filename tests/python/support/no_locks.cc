// SPDX-License-Identifier: Apache-2.0
// A library to load ahead of others (LD_PRELOAD): files cannot be locked, as on file systems that
// have no locks or are mounted without. NO_LOCKS_ERRNO is what locking fails with.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>

namespace {

int Refused() {
  const char* const number = getenv("NO_LOCKS_ERRNO");
  errno = number == nullptr ? ENOSYS : atoi(number);
  return -1;
}

int Call(const char* name, int descriptor, int command, void* argument) {
  switch (command) {
    case F_GETLK:
    case F_SETLK:
    case F_SETLKW:
    case F_OFD_GETLK:
    case F_OFD_SETLK:
    case F_OFD_SETLKW:
      return Refused();
    default:
      return reinterpret_cast<int (*)(int, int, ...)>(dlsym(RTLD_NEXT, name))(descriptor, command,
                                                                              argument);
  }
}

void* ArgumentOf(va_list list) { return va_arg(list, void*); }

}  // namespace

extern "C" __attribute__((visibility("default"))) int fcntl(int descriptor, int command, ...) {
  va_list list;
  va_start(list, command);
  void* const argument = ArgumentOf(list);
  va_end(list);
  return Call("fcntl", descriptor, command, argument);
}

extern "C" __attribute__((visibility("default"))) int fcntl64(int descriptor, int command, ...) {
  va_list list;
  va_start(list, command);
  void* const argument = ArgumentOf(list);
  va_end(list);
  return Call("fcntl64", descriptor, command, argument);
}

extern "C" __attribute__((visibility("default"))) int flock(int, int) { return Refused(); }
