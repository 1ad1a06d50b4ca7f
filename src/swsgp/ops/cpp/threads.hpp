// Work on threads of our own, which may fail to start or run out of memory.

#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace swsgp {

// Calls task(t) once for each t < n, on up to as many threads, this one among them. Where no more threads can be had,
// those that are there do everything. Throws what a task threw, after all have ended.
template <typename F>
void on_threads(int64_t n, const F& task) {
  std::atomic<int64_t> next{0};
  std::exception_ptr trouble;
  std::mutex mutex;
  const auto work = [&] {
    for (int64_t t; (t = next.fetch_add(1)) < n;) try {
        task(t);
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex);
        trouble = std::current_exception();
      }
  };
  std::vector<std::thread> others;
  try {
    for (int64_t t = 1; t < n; ++t) others.emplace_back(work);
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  work();
  for (auto& other : others) other.join();
  if (trouble) std::rethrow_exception(trouble);
}

}  // namespace swsgp
