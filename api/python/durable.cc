// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/gil.h"
#include "db/export/durable.h"
#include "io/open_disk.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;

// Paths come as bytes, as os.fsencode makes them: not every name is UTF-8.
std::string Text(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

// Removes what is left of it with its last reference, whatever interrupted its user.
class Folder {
 public:
  Folder(const nb::bytes& path, bool replace, uint32_t file_mode) {
    folder_ = Call([&, name = Text(path)] {
      return db::DurableFolder::Create(io::LocalFileSystem(), name, replace, file_mode);
    });
    temporary_ = folder_->temporary();
  }
  ~Folder() { Close(); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  nb::bytes temporary() const { return nb::bytes(temporary_.data(), temporary_.size()); }

  void Commit(const nb::bytes& inner) {
    if (folder_ == nullptr) throw nb::value_error("the folder is closed");
    Call([&, name = Text(inner)] { return folder_->Commit(name); });
  }

  void Close() {
    const GilReleased release;
    folder_.reset();
  }

 private:
  std::unique_ptr<db::DurableFolder> folder_;
  std::string temporary_;
};

// A function of one path.
template <typename Function>
void Bind(nb::module_& m, const char* name, Function function) {
  m.def(
      name,
      [function](const nb::bytes& path) {
        Call([&, text = Text(path)] { return function(io::LocalFileSystem(), text); });
      },
      nb::arg("path"));
}

}  // namespace

void BindDurable(nb::module_& m) {
  nb::class_<Folder>(m, "DurableFolder")
      .def(nb::init<const nb::bytes&, bool, uint32_t>(), nb::arg("path"), nb::arg("replace"),
           nb::arg("file_mode"))
      .def_prop_ro("temporary", &Folder::temporary)
      .def("commit", &Folder::Commit, nb::arg("inner"))
      .def("close", &Folder::Close);
  m.def(
      "write_durably",
      [](const nb::bytes& path, const nb::bytes& data, uint32_t mode) {
        const std::string_view bytes(data.c_str(), data.size());
        Call([&, text = Text(path)] {
          return db::WriteDurably(io::LocalFileSystem(), text, bytes, mode);
        });
      },
      nb::arg("path"), nb::arg("data"), nb::arg("mode"));
  m.def(
      "move_durably",
      [](const nb::bytes& source, const nb::bytes& target) {
        Call([&, from = Text(source), to = Text(target)] {
          return db::MoveDurably(io::LocalFileSystem(), from, to);
        });
      },
      nb::arg("source"), nb::arg("target"));
  Bind(m, "remove_durably", db::RemoveDurably);
  Bind(m, "sync_directory",
       [](io::FileSystem* files, const std::string& path) { return files->SyncDirectory(path); });
  Bind(m, "remove_tree", [](io::FileSystem* files, const std::string& path) {
    db::RemoveTree(files, path);
    return OkStatus();
  });
  m.def(
      "is_claimed",
      [](const nb::bytes& path) {
        return Call([name = Text(path)]() -> Result<bool> {
          return db::ExportFolder::IsClaimed(io::LocalFileSystem(), name);
        });
      },
      nb::arg("path"));
  m.def(
      "sweep",
      [](const nb::bytes& path, bool ours) {
        const std::string folder = Text(path);
        Call([&] {
          db::Sweep(io::LocalFileSystem(), folder, ours);
          return OkStatus();
        });
      },
      nb::arg("path"), nb::arg("ours"));
}

}  // namespace stepwell::python
