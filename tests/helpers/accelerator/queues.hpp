// Streams as queues of tasks, run by one thread in an order that the test chooses.
//
// A task is a kernel, a wait for an event, or the record of one. Whoever synchronises runs what
// it needs and no more. Beside that, streams that are not starved run at once as far as they
// can; a starved one runs only when somebody waits for it. So every timing is reproducible.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <utility>

namespace queued {

struct Event {
  bool done = false;
};
using EventPtr = std::shared_ptr<Event>;
using StreamId = std::int64_t;

struct Task {
  enum Kind { Kernel, Wait, Record } kind;
  std::function<void()> kernel;
  EventPtr event;
};

class Queues {
 public:
  std::recursive_mutex mutex;

  StreamId new_stream() {
    std::lock_guard<std::recursive_mutex> held(mutex);
    return next_++;
  }

  void launch(StreamId stream, std::function<void()> kernel) {
    push(stream, {Task::Kernel, std::move(kernel), nullptr});
  }

  EventPtr record(StreamId stream) {
    auto event = std::make_shared<Event>();
    push(stream, {Task::Record, {}, event});
    return event;
  }

  void wait(StreamId stream, EventPtr event) {
    if (event != nullptr) push(stream, {Task::Wait, {}, std::move(event)});
  }

  void synchronize(StreamId stream) {
    std::lock_guard<std::recursive_mutex> held(mutex);
    while (!tasks_[stream].empty()) force(stream);
  }

  void synchronize(const EventPtr& event) {
    std::lock_guard<std::recursive_mutex> held(mutex);
    while (!event->done) force(recorder(event));
  }

  void synchronize() {
    std::lock_guard<std::recursive_mutex> held(mutex);
    for (auto& [stream, tasks] : tasks_)
      while (!tasks.empty()) force(stream);
  }

  bool is_idle(StreamId stream) {
    std::lock_guard<std::recursive_mutex> held(mutex);
    return tasks_[stream].empty();
  }

  // Streams outside `starved` run at once, or by chance where `seed` is not 0.
  void starve(std::set<StreamId> starved, std::uint64_t seed) {
    synchronize();
    std::lock_guard<std::recursive_mutex> held(mutex);
    starved_ = std::move(starved);
    seed_ = seed;
    chance_.seed(seed);
  }

 private:
  std::map<StreamId, std::deque<Task>> tasks_;
  std::set<StreamId> starved_;
  std::uint64_t seed_ = 0;
  std::mt19937_64 chance_{0};
  StreamId next_ = 1;
  bool running_ = false;

  void push(StreamId stream, Task task) {
    std::lock_guard<std::recursive_mutex> held(mutex);
    tasks_[stream].push_back(std::move(task));
    if (!running_) run_the_others();
  }

  void run_the_others() {
    for (bool more = true; more;) {
      more = false;
      for (auto& [stream, tasks] : tasks_) {
        if (starved_.count(stream)) continue;
        int most = seed_ == 0 ? -1 : static_cast<int>(chance_() % 4);
        while (most-- != 0 && can_run(tasks)) {
          run_one(tasks);
          more = seed_ == 0;
        }
      }
    }
  }

  static bool can_run(const std::deque<Task>& tasks) {
    return !tasks.empty() && (tasks.front().kind != Task::Wait || tasks.front().event->done);
  }

  void run_one(std::deque<Task>& tasks) {
    Task task = std::move(tasks.front());
    tasks.pop_front();
    bool outer = std::exchange(running_, true);
    if (task.kind == Task::Kernel) task.kernel();
    if (task.kind == Task::Record) task.event->done = true;
    running_ = outer;
  }

  void force(StreamId stream) {
    auto& tasks = tasks_[stream];
    if (tasks.front().kind == Task::Wait) synchronize(EventPtr(tasks.front().event));
    run_one(tasks);
  }

  StreamId recorder(const EventPtr& event) {
    for (auto& [stream, tasks] : tasks_)
      for (auto& task : tasks)
        if (task.kind == Task::Record && task.event == event) return stream;
    TORCH_CHECK(false, "queued: a wait for an event that nothing records");
  }
};

inline Queues& queues() {
  static auto* the = new Queues;
  return *the;
}

inline StreamId& current_stream() {
  thread_local StreamId stream = 0;
  return stream;
}

}  // namespace queued
