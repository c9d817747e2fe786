// Command apidiff compares the exported API of a checkout with the API at an earlier commit, by default the last
// version. See the head of tools/apidiff.
package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/exp/apidiff"
)

const usage = `usage: tools/apidiff [--base COMMIT] [DIR]
its head tells more`

const module = "vnic.dev/vnic"

// listFile lists the packages that are API.
const listFile = "internal/api/packages.txt"

// baseFile names the commit that counts as the last version while no tag v* is HEAD or before it.
const baseFile = "tools/apidiff.base"

func main() {
	err := run(os.Args[1:], module, os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Println(usage)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "apidiff:", err)
		os.Exit(1)
	}
}

func run(args []string, module string, out io.Writer) error {
	flags := flag.NewFlagSet("apidiff", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	base := flags.String("base", "", "")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil || flags.NArg() > 1 {
		return errors.Join(err, errors.New(usage))
	}
	dir := cmp.Or(flags.Arg(0), ".")
	if _, err := os.Lstat(filepath.Join(dir, ".git")); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(out, "%s is no git checkout: there is no API of an earlier version to compare with.\n", dir)
		return nil
	}
	commit, what, err := baseOf(dir, *base)
	if err != nil {
		return err
	}
	changes, err := compare(dir, commit, module)
	if err != nil {
		return err
	}
	log, err := os.ReadFile(filepath.Join(dir, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	return report(out, what, changes, named(string(log)))
}

func git(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

// baseOf returns the hash of the commit to compare with, and what names it: given; if that is empty, the last tag v* up
// to HEAD; without such a tag, the text of baseFile.
func baseOf(dir, given string) (commit, what string, err error) {
	switch {
	case given != "":
		what = given
	default:
		if _, err := git(dir, "rev-parse", "--git-dir"); err != nil {
			return "", "", err
		}
		if what, err = git(dir, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"); err == nil {
			break
		}
		b, err := os.ReadFile(filepath.Join(dir, baseFile))
		if err != nil {
			return "", "", fmt.Errorf("no tag v*, and no commit that counts as the last version: %w", err)
		}
		if what = strings.TrimSpace(string(b)); what == "" {
			return "", "", fmt.Errorf("%s is empty: it names a commit", baseFile)
		}
	}
	commit, err = git(dir, "rev-parse", "--verify", "--quiet", what+"^{commit}")
	if err != nil {
		return "", "", fmt.Errorf("%s is not in this clone: if that is shallow, git fetch --unshallow --tags", what)
	}
	return commit, what, nil
}

type change struct {
	name       string // package and identifier, as "dma.Space.Add"; of a change of a whole package, the package alone
	message    string
	compatible bool
}

func compare(dir, commit, module string) ([]change, error) {
	tmp, err := os.MkdirTemp("", "vnic-apidiff-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	if err := extract(dir, commit, tmp); err != nil {
		return nil, fmt.Errorf("files of %s: %w", commit, err)
	}
	now, err := list(dir, nil)
	if err != nil {
		return nil, err
	}
	then, err := list(tmp, now) // a base without listFile gets the checkout's list
	if err != nil {
		return nil, err
	}
	fresh, err := load(dir, module, now)
	if err != nil {
		return nil, err
	}
	old, err := load(tmp, module, then, "-trimpath") // with -trimpath the build cache works in tmp, too
	if err != nil {
		return nil, err
	}
	var all []change
	for _, pkg := range then {
		if old[pkg] != nil && fresh[pkg] == nil {
			all = append(all, change{pkg, "removed, or no longer API", false})
		}
	}
	for _, pkg := range now {
		switch {
		case fresh[pkg] == nil:
			if !slices.Contains(then, pkg) {
				return nil, fmt.Errorf("%s names %s, which is not there", listFile, pkg)
			}
		case old[pkg] == nil:
			all = append(all, change{pkg, "added", true})
		default:
			for _, c := range apidiff.Changes(old[pkg], fresh[pkg]).Changes {
				name, message := identifier(c.Message)
				all = append(all, change{pkg + "." + name, message, c.Compatible})
			}
		}
	}
	return all, nil
}

// list reads a checkout's list of packages that are API. If the checkout in dir has no listFile, it
// returns the parameter without, or an error if that is nil.
func list(dir string, without []string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(listFile)))
	if errors.Is(err, fs.ErrNotExist) && without != nil {
		return without, nil
	}
	if err != nil {
		return nil, err
	}
	return parse(string(b)), nil
}

func extract(dir, commit, to string) error {
	cmd := exec.Command("git", "-C", dir, "archive", "--format=tar", commit)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = untar(pipe, to)
	_, _ = io.Copy(io.Discard, pipe)
	if werr := cmd.Wait(); werr != nil {
		err = errors.Join(err, fmt.Errorf("git archive: %w: %s", werr, bytes.TrimSpace(stderr.Bytes())))
	}
	return err
}

func untar(r io.Reader, to string) error {
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(filepath.Clean(h.Name), 0o755)
		case tar.TypeReg: // others, such as links, are left out: a build needs none
			var b []byte
			if b, err = io.ReadAll(t); err == nil {
				err = root.WriteFile(h.Name, b, 0o644)
			}
		}
		if err != nil {
			return err
		}
	}
}

// identifier splits a message of golang.org/x/exp/apidiff into the identifier, without (*...), and the change.
func identifier(message string) (name, change string) {
	name, change, _ = strings.Cut(message, ": ")
	name, part, more := strings.Cut(name, ", ")
	if more {
		change = part + ": " + change
	}
	return strings.NewReplacer("(*", "", ")", "").Replace(name), change
}

// named returns the identifiers in backquotes under "### Incompatible" of the section "Unreleased".
func named(changelog string) map[string]bool {
	found := map[string]bool{}
	unreleased, under := false, false
	var text strings.Builder
	for line := range strings.Lines(changelog) {
		switch heading := strings.Trim(strings.TrimSpace(line), "[]"); {
		case strings.HasPrefix(line, "## "):
			unreleased, under = strings.Trim(strings.TrimPrefix(heading, "## "), "[]") == "Unreleased", false
		case strings.HasPrefix(line, "### "):
			under = unreleased && heading == "### Incompatible"
		case under:
			text.WriteString(line)
		}
	}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text.String(), -1) {
		found[m[1]] = true
	}
	return found
}

// report prints changes. It returns an error if the name of an incompatible one is not in named.
func report(out io.Writer, base string, changes []change, named map[string]bool) error {
	print := func(title string, compatible bool) {
		first := true
		for _, c := range changes {
			if c.compatible != compatible {
				continue
			}
			if first {
				fmt.Fprintf(out, "%s since %s:\n", title, base)
			}
			first = false
			fmt.Fprintf(out, "  %s: %s\n", c.name, c.message)
		}
	}
	print("Compatible changes", true)
	print("Incompatible changes", false)
	var missing []string
	for _, c := range changes {
		if !c.compatible && !named[c.name] {
			missing = append(missing, "`"+c.name+"`")
		}
	}
	slices.Sort(missing)
	if missing = slices.Compact(missing); len(missing) > 0 {
		return fmt.Errorf("CHANGELOG.md does not name under \"Unreleased\", \"### Incompatible\": %s",
			strings.Join(missing, ", "))
	}
	if len(changes) == 0 {
		fmt.Fprintf(out, "The API is that of %s.\n", base)
	}
	return nil
}
