// Package tree lists and classifies the files of a checkout.
package tree

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Module is the module path of the checkouts.
const Module = "vnic.dev/vnic"

// Support has the names of directories that count as test support, some in older checkouts only. A product file outside
// them must not import testing (tools/internal/size).
var Support = []string{
	"devmemtest", "fusetest", "golden", "kerneltest", "labtest", "leaktest", "machinetest", "nictest", "peertest",
	"schematest",
	"stacktest", "testkit", "vfiotest", "vhostusertest", "worldtest",
}

// A Class is the purpose of a file.
type Class string

// The classes.
const (
	Product    Class = "product"
	Test       Class = "test"
	TestHelp   Class = "support"
	Acceptance Class = "acceptance"
	Tools      Class = "tools"
)

// A Language is the language of a file, or Other or Data.
type Language string

// The languages.
const (
	Go       Language = "Go"
	Shell    Language = "shell"
	Python   Language = "Python"
	C        Language = "C"
	Assembly Language = "assembly"
	Script   Language = "testscript" // in an archive (.txtar)
	Markdown Language = "Markdown"
	Other    Language = "other" // such as Makefile, YAML, units, go.mod
	Data     Language = "data"  // such as JSON, LICENSE, and testdata without Go and testscripts
)

// Files lists the regular files of a checkout that git tracks or would track, sorted.
func Files(dir string) ([]string, error) {
	cmd := exec.Command("git", "-C", dir, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("files of %s: it must be a git checkout: %w: %s", dir, err, bytes.TrimSpace(stderr.Bytes()))
	}
	var files []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		// git also lists files that are in the index, but not in the directory any more.
		if info, err := os.Lstat(filepath.Join(dir, name)); name != "" && err == nil && info.Mode().IsRegular() {
			files = append(files, name)
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// ClassOf returns the class of a file by its name.
func ClassOf(name string) Class {
	dirs := strings.Split(path.Dir(name), "/")
	switch {
	case dirs[0] == "test":
		return Acceptance
	case dirs[0] == "tools" || dirs[0] == ".ci" || dirs[0] == ".github":
		return Tools
	case strings.HasSuffix(name, "_test.go") || slices.Contains(dirs, "testdata"):
		return Test
	case slices.ContainsFunc(dirs, func(d string) bool { return slices.Contains(Support, d) }):
		return TestHelp
	}
	return Product
}

// LanguageOf returns the language of the file name in dir, by its name, or by its first line if it has no extension.
func LanguageOf(dir, name string) Language {
	base := path.Base(name)
	ext := path.Ext(name)
	if strings.Contains("/"+name, "/testdata/") && ext != ".go" && ext != ".txtar" {
		return Data
	}
	switch ext {
	case ".go":
		return Go
	case ".sh":
		return Shell
	case ".py":
		return Python
	case ".c", ".h":
		return C
	case ".s":
		return Assembly
	case ".txtar":
		return Script
	case ".md":
		return Markdown
	case ".yml", ".yaml", ".mod", ".service":
		return Other
	case "":
		if base == "LICENSE" {
			return Data
		}
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return Data
		}
		defer f.Close()
		head := make([]byte, 64)
		n, _ := f.Read(head)
		line, _, _ := strings.Cut(string(head[:n]), "\n")
		if strings.HasPrefix(line, "#!") {
			if strings.Contains(line, "python") {
				return Python
			}
			return Shell
		}
		return Other
	}
	if base == ".gitignore" {
		return Other
	}
	return Data
}

// Packages lists the directories with Go files, sorted, without tools and testdata.
func Packages(files []string) []string {
	var dirs []string
	for _, name := range files {
		if path.Ext(name) != ".go" || strings.HasPrefix(name, "tools/") || strings.Contains("/"+name, "/testdata/") {
			continue
		}
		dirs = append(dirs, path.Dir(name))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}
