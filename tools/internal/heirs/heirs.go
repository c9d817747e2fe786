// Package heirs finds the successors (heirs) of the entries of an old inventory in a new one. A mapping has one
// rule a line; lines that begin with # are comments:
//
//	package nic/gve -> nic/model/gve                            all of a package, the names unchanged
//	package qemu -> qemu qemu/assets                            or in one of several
//	test nic TestA -> test nic TestB                            an entry, and its parts (TestA/x -> TestB/x)
//	subtest nic TestA/* -> subtest nic TestB/some_*             all that begin so, the rest unchanged
//	check acceptance/3-inproc.sh * -> test lab TestProof        all that begin so, to one heir
//
// If rules without * match an entry, no others count: its heir is the first of their heirs that exists in the new
// inventory, the longest old name first. Otherwise its heir is the first of these that exists: the entry itself, the
// heirs by rules with *, the longest beginning first, and the entry's name in the packages of its package's rule. Each
// rule leads from the old inventory to the new one in one step. A rule is an error if it matches no entry of the old
// inventory, or if no heir by it exists; a package's rule also if one of its packages has no entry in the new
// inventory.
package heirs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"vnic.dev/vnic/tools/internal/entry"
)

// Rules is a mapping.
type Rules struct {
	packages []packageRule
	entries  []entryRule // without *, then with *; in each group the longest old name first
}

type packageRule struct {
	line int
	old  string
	to   []string
}

type entryRule struct {
	line    int
	old, to entry.Entry // without *
	prefix  bool        // the rule's old entry ends in *
	carry   bool        // the rule's new entry ends in * too
}

// Read reads the mapping in a file.
func Read(file string) (*Rules, error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r, err := Parse(string(src))
	if err != nil {
		return nil, fmt.Errorf("%s:%w", file, err)
	}
	return r, nil
}

// Parse reads the text of a mapping.
func Parse(src string) (*Rules, error) {
	r := &Rules{}
	n := 0
	for line := range strings.Lines(src) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if err := r.add(n, line); err != nil {
			return nil, fmt.Errorf("%d: %w", n, err)
		}
	}
	slices.SortStableFunc(r.entries, func(a, b entryRule) int {
		if a.prefix != b.prefix {
			if a.prefix {
				return 1
			}
			return -1
		}
		return len(b.old.Name) - len(a.old.Name)
	})
	return r, nil
}

func (r *Rules) add(n int, line string) error {
	old, to, ok := strings.Cut(line, entry.Arrow)
	if !ok || strings.Contains(to, entry.Arrow) {
		return fmt.Errorf("%q: not OLD%sHEIR", line, entry.Arrow)
	}
	if pkg, ok := strings.CutPrefix(old, "package "); ok {
		if len(strings.Fields(pkg)) != 1 {
			return fmt.Errorf("%q: not package OLD%sNEW, one or more", line, entry.Arrow)
		}
		if slices.ContainsFunc(r.packages, func(p packageRule) bool { return p.old == pkg }) {
			return fmt.Errorf("package %s has a rule already", pkg)
		}
		r.packages = append(r.packages, packageRule{n, pkg, strings.Fields(to)})
		return nil
	}
	rule := entryRule{line: n}
	var err error
	if rule.old, rule.prefix, err = pattern(old); err != nil {
		return err
	}
	if rule.to, rule.carry, err = pattern(to); err != nil {
		return err
	}
	if rule.carry && !rule.prefix {
		return fmt.Errorf("%q: the heir ends in *, what it inherits from does not", line)
	}
	if slices.ContainsFunc(r.entries, func(e entryRule) bool { return e.old == rule.old && e.prefix == rule.prefix }) {
		return fmt.Errorf("%q has a rule already", old)
	}
	r.entries = append(r.entries, rule)
	return nil
}

// pattern reads an entry that may end in *, returns it without the *, and reports whether there was one.
func pattern(s string) (e entry.Entry, prefix bool, err error) {
	e, err = entry.Parse(s)
	e.Name, prefix = strings.CutSuffix(e.Name, "*")
	return e, prefix, err
}

// Packages returns the packages that have the code of an old package by its rule; without a rule, the package itself.
func (r *Rules) Packages(old string) []string {
	for _, p := range r.packages {
		if p.old == old {
			return p.to
		}
	}
	return []string{old}
}

// BenchmarksOf returns the packages of the heirs of all rules for benchmarks of an old package, perhaps repeatedly.
func (r *Rules) BenchmarksOf(old string) []string {
	var all []string
	for _, rule := range r.entries {
		if rule.old.Package == old && (rule.old.Kind == entry.Bench || rule.old.Kind == entry.Sub) {
			all = append(all, rule.to.Package)
		}
	}
	return all
}

// Candidates returns the possible heirs of an entry, best first.
func (r *Rules) Candidates(e entry.Entry) []entry.Entry {
	var found []entry.Entry
	for _, rule := range r.entries {
		if to, ok := rule.apply(e); ok && !rule.prefix {
			found = append(found, to)
		}
	}
	if len(found) > 0 {
		return found // rules without * exclude the others
	}
	found = append(found, e)
	for _, rule := range r.entries {
		if to, ok := rule.apply(e); ok && rule.prefix {
			found = append(found, to)
		}
	}
	for _, pkg := range r.Packages(e.Package) {
		found = append(found, entry.Entry{Kind: e.Kind, Package: pkg, Name: e.Name})
	}
	return found
}

// apply returns the heir that the rule gives an entry, if it matches.
func (r entryRule) apply(e entry.Entry) (entry.Entry, bool) {
	if e.Package != r.old.Package {
		return entry.Entry{}, false
	}
	rest, begins := strings.CutPrefix(e.Name, r.old.Name)
	switch {
	case !begins:
	case e.Kind == r.old.Kind && (rest == "" || r.prefix):
		if r.carry {
			return entry.Entry{Kind: r.to.Kind, Package: r.to.Package, Name: r.to.Name + rest}, true
		}
		return r.to, true
	case r.prefix || !strings.HasPrefix(rest, "/"):
	case parts[e.Kind] == r.old.Kind || partKinds[e.Kind] && e.Kind == r.old.Kind: // a part of the rule's entry
		kind := r.to.Kind
		for part, whole := range parts {
			if whole == kind {
				kind = part
			}
		}
		return entry.Entry{Kind: kind, Package: r.to.Package, Name: r.to.Name + rest}, true
	}
	return entry.Entry{}, false
}

// parts maps the kind of a part to the kind of the test, fuzz target or benchmark that contains it.
var parts = map[string]string{entry.Subtest: entry.Test, entry.Corpus: entry.Fuzz, entry.Sub: entry.Bench}

// partKinds are the kinds of entries that can have parts of the same kind.
var partKinds = map[string]bool{entry.Subtest: true, entry.Sub: true}

// A Closed is an old entry with its heir.
type Closed struct{ Old, Heir entry.Entry }

// Close finds the heir of each entry of old in now. The error names entries without an heir, and wrong rules.
// With shallow, a subtest, a part of a benchmark or a seed counts as present if now has its test, benchmark or fuzz
// target.
func (r *Rules) Close(old, now []entry.Entry, shallow bool) ([]Closed, error) {
	all := map[entry.Entry]bool{}
	packages := map[string]bool{}
	for _, e := range now {
		all[e], packages[e.Package] = true, true
	}
	there := func(e entry.Entry) bool {
		if name, part, _ := strings.Cut(e.Name, "/"); shallow && (partKinds[e.Kind] || strings.HasPrefix(part, "seed#")) {
			return all[e] || all[entry.Entry{Kind: parts[e.Kind], Package: e.Package, Name: name}]
		}
		return all[e]
	}
	var errs []error
	for _, p := range r.packages {
		if !slices.ContainsFunc(old, func(e entry.Entry) bool { return e.Package == p.old }) {
			errs = append(errs, fmt.Errorf("line %d: package %s: the old inventory has none", p.line, p.old))
		}
		for _, to := range p.to {
			if !packages[to] {
				errs = append(errs, fmt.Errorf("line %d: package %s: heir %s: the new inventory has none", p.line, p.old, to))
			}
		}
	}
	for _, rule := range r.entries {
		used := false
		heir := there(rule.to)
		for _, e := range old {
			if to, ok := rule.apply(e); ok {
				used = true
				heir = heir || rule.carry && there(to)
			}
		}
		if !used {
			errs = append(errs, fmt.Errorf("line %d: %s: not in the old inventory", rule.line, rule.old))
		}
		if !heir {
			errs = append(errs, fmt.Errorf("line %d: %s: heir %s: not in the new inventory", rule.line, rule.old, rule.to))
		}
	}
	var closed []Closed
	for _, e := range old {
		candidates := r.Candidates(e)
		i := slices.IndexFunc(candidates, there)
		if i < 0 {
			errs = append(errs, fmt.Errorf("no heir: %s", e))
			continue
		}
		closed = append(closed, Closed{e, candidates[i]})
	}
	return closed, errors.Join(errs...)
}
