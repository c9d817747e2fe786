// Package doclinks tests that the files which Markdown names exist.
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
)

// foreign are files of other projects, and files that a page tells its reader to make.
var foreign = []string{"net/vhost-user.c", "tools/net/ynl/pyynl/ynl_gen_c.py", "drivers/net/gve.c", "c/forty.c",
	"share/qemu/vhost-user/50-vnic.json", "examples/devmem.c"}

// Links in Markdown lead to files that are there, and so do names of files: from the root, from internal/, or from the
// page's folder.
func TestFilesThatPagesNameAreThere(t *testing.T) {
	list := exec.Command("git", "ls-files", "*.md")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	there := func(path ...string) bool {
		_, err := os.Stat(filepath.Join(append([]string{root}, path...)...))
		return err == nil
	}
	names := 0
	for page := range strings.FieldsSeq(string(out)) {
		if page == "CHANGELOG.md" || strings.Contains(page, "/vendor/") {
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
	}
	if names < 200 {
		t.Errorf("%d names and links", names)
	}
}
