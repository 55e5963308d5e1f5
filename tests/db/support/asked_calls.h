// SPDX-License-Identifier: Apache-2.0
// System calls of this process that a thread of the process itself is asked about before each, by
// seccomp: it lets them go on, has them fail, or ends the process instead.
#pragma once

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

namespace stepwell::test {

// Has the kernel ask before each of `calls`, for this thread and those that it starts from now on;
// a descriptor to answer at, or -1.
inline int AskBefore(const std::vector<int>& calls) {
  std::vector<sock_filter> rules;
  rules.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto ahead = static_cast<unsigned char>(calls.size() - i);
    rules.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(calls[i]), ahead, 0));
  }
  rules.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  rules.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
  const sock_fprog program{static_cast<unsigned short>(rules.size()), rules.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return static_cast<int>(
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
}

// `error_of`: the errno that a call fails with; 0: it goes on.
inline void AnswerAt(int listener, int (*error_of)(const seccomp_notif&)) {
  for (;;) {
    seccomp_notif notice;
    std::memset(&notice, 0, sizeof(notice));
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notice) != 0) {
      if (errno == EINTR || errno == ENOENT) continue;
      return;
    }
    seccomp_notif_resp answer;
    std::memset(&answer, 0, sizeof(answer));
    answer.id = notice.id;
    const int error = error_of(notice);
    answer.error = -error;
    answer.flags = error == 0 ? SECCOMP_USER_NOTIF_FLAG_CONTINUE : 0;
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  }
}

// Once in a process: `error_of` is asked before each of `calls`, for this thread and those that it
// starts, on a thread of its own. False where the system has no seccomp.
inline bool AnswerCalls(const std::vector<int>& calls, int (*error_of)(const seccomp_notif&)) {
  static std::atomic<int> listener{-2};
  static std::atomic<bool> listens{false};
  std::thread([error_of] {  // before the filter, which it is not subject to
    listens = true;
    while (listener == -2) usleep(100);
    if (listener >= 0) AnswerAt(listener, error_of);
  })
      .detach();
  // A thread of a sanitizer's begins with an allocation, whose lock this one may hold in a call
  // that waits for the answer.
  while (!listens) usleep(100);
  listener = AskBefore(calls);
  return listener >= 0;
}

}  // namespace stepwell::test
