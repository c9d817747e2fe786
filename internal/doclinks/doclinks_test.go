// Package doclinks tests that the files and Go identifiers that Markdown pages name exist.
package doclinks

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

var (
	link   = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	scheme = regexp.MustCompile(`^[a-z]+:`)
	file   = regexp.MustCompile("`((?:[a-z][\\w.-]*/)+[\\w.-]+\\.(?:go|c|h|sh|md|yaml|json|py|js|txt))`")
	base   = regexp.MustCompile("`([\\w.-]+\\.go)`")
)

// foreign lists files of other projects, and files that a page tells its reader to make.
var foreign = []string{"net/vhost-user.c", "tools/net/ynl/pyynl/ynl_gen_c.py", "drivers/net/gve.c", "c/forty.c",
	"share/qemu/vhost-user/50-vnic.json", "examples/devmem.c"}

func tracked(t *testing.T, patterns ...string) []string {
	t.Helper()
	list := exec.Command("git", append([]string{"ls-files", "-co", "--exclude-standard"}, patterns...)...)
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(strings.Fields(string(out)), func(f string) bool { return strings.Contains(f, "/vendor/") })
}

// In Markdown pages, except CHANGELOG.md, relative links lead to files or folders. In back-quotes, names of Go files
// and paths with the extensions in the expression file exist here or are in foreign.
func TestFilesThatPagesNameAreThere(t *testing.T) {
	there := func(path ...string) bool {
		_, err := os.Stat(filepath.Join(append([]string{root}, path...)...))
		return err == nil
	}
	bases := map[string]bool{}
	for _, f := range tracked(t, "*.go") {
		bases[filepath.Base(f)] = true
	}
	names := 0
	for _, page := range tracked(t, "*.md") {
		if page == "CHANGELOG.md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(page)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if names++; !scheme.MatchString(m[1]) && !there(dir, m[1]) {
				t.Errorf("%s: there is no %s", page, m[1])
			}
		}
		for _, m := range file.FindAllStringSubmatch(string(text), -1) {
			names++
			if !there(m[1]) && !there("internal", m[1]) && !there(dir, m[1]) && !slices.Contains(foreign, m[1]) {
				t.Errorf("%s: there is no %s", page, m[1])
			}
		}
		for _, m := range base.FindAllStringSubmatch(string(text), -1) {
			if names++; !bases[m[1]] && !slices.Contains(foreign, m[1]) {
				t.Errorf("%s: there is no %s", page, m[1])
			}
		}
	}
	if names < 200 {
		t.Errorf("%d names and links", names)
	}
}
