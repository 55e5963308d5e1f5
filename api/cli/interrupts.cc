// SPDX-License-Identifier: Apache-2.0
#include "api/cli/interrupts.h"

#include <atomic>

namespace stepwell::cli {
namespace {

std::atomic<bool> g_received{false};

}  // namespace

Interrupts::Interrupts() {
  g_received = false;
  struct sigaction action {};
  action.sa_handler = [](int) { g_received = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &interrupt_);
  sigaction(SIGTERM, &action, &terminate_);
}

Interrupts::~Interrupts() {
  sigaction(SIGINT, &interrupt_, nullptr);
  sigaction(SIGTERM, &terminate_, nullptr);
}

bool Interrupts::Received() { return g_received; }

}  // namespace stepwell::cli
