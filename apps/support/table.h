#pragma once

#include <string>
#include <vector>

namespace troupe::apps {

/// A table of plain text: columns as wide as their widest cell, the first to the left, the others to the right.
class Table {
  public:
    explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}

    void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
    /// All columns to the left, for words rather than figures.
    void alignLeft() { left_ = true; }
    std::string toString() const;

  private:
    std::vector<std::vector<std::string>> rows_;
    bool left_ = false;
};

}  // namespace troupe::apps
