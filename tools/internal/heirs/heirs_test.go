package heirs

import (
	"strings"
	"testing"

	"vnic.dev/vnic/tools/internal/entry"
)

func entries(t *testing.T, text string) []entry.Entry {
	t.Helper()
	var all []entry.Entry
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			e, err := entry.Parse(line)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
	}
	return entry.Sort(all)
}

func TestClose(t *testing.T) {
	for _, c := range []struct {
		name, old, now, rules string
		shallow               bool
		want                  string // the table, without entries that are their own heirs; if wrong is empty
		wrong                 string
	}{
		{name: "nothing has changed", old: "test a TestX\ncheck s.sh a b",
			now: "test a TestX\ncheck s.sh a b\ntest b TestNew"},
		{name: "gone", old: "test a TestX", now: "test a TestY", wrong: "no heir: test a TestX"},
		{name: "a part gone", old: "test a TestX\nsubtest a TestX/1", now: "test a TestX",
			wrong: "no heir: subtest a TestX/1"},
		{name: "a part not known", old: "test a TestX\nsubtest a TestX/1\ncorpus a FuzzX/seed#0\nfuzz a FuzzX",
			now: "test a TestX\nfuzz a FuzzX", shallow: true, want: ""},
		{name: "a corpus file gone", old: "corpus a FuzzX/0123\nfuzz a FuzzX", now: "fuzz a FuzzX", shallow: true,
			wrong: "no heir: corpus a FuzzX/0123"},
		{name: "renamed, with its parts", old: "test a TestX\nsubtest a TestX/1\nsubtest a TestX/1/2",
			now: "test a TestY\nsubtest a TestY/1\nsubtest a TestY/1/2", rules: "test a TestX -> test a TestY",
			want: "subtest a TestX/1 -> subtest a TestY/1\nsubtest a TestX/1/2 -> subtest a TestY/1/2\n" +
				"test a TestX -> test a TestY\n"},
		{name: "into a table", old: "test a TestX\nsubtest a TestX/1",
			now:   "test a TestT\nsubtest a TestT/x\nsubtest a TestT/x/1",
			rules: "test a TestX -> subtest a TestT/x",
			want:  "subtest a TestX/1 -> subtest a TestT/x/1\ntest a TestX -> subtest a TestT/x\n"},
		{name: "renamed, a part gone", old: "test a TestX\nsubtest a TestX/1", now: "test a TestY",
			rules: "test a TestX -> test a TestY", wrong: "no heir: subtest a TestX/1"},
		{name: "a longer name is no part", old: "test a TestX\ntest a TestXY", now: "test a TestZ",
			rules: "test a TestX -> test a TestZ", wrong: "no heir: test a TestXY"},
		{name: "moved", old: "test a TestX\nsubtest a TestX/1", now: "test b/c TestX\nsubtest b/c TestX/1",
			rules: "package a -> b/c",
			want:  "subtest a TestX/1 -> subtest b/c TestX/1\ntest a TestX -> test b/c TestX\n"},
		{name: "split", old: "test a TestX\ntest a TestY", now: "test b TestX\ntest c TestY", rules: "package a -> b c",
			want: "test a TestX -> test b TestX\ntest a TestY -> test c TestY\n"},
		{name: "moved and renamed", old: "test a TestX\ntest a TestY", now: "test b TestX\ntest b TestZ",
			rules: "package a -> b\ntest a TestY -> test b TestZ",
			want:  "test a TestX -> test b TestX\ntest a TestY -> test b TestZ\n"},
		{name: "moved, one lost", old: "test a TestX\ntest a TestY", now: "test b TestX", rules: "package a -> b",
			wrong: "no heir: test a TestY"},
		{name: "all of a script", old: "check s.sh a > b\ncheck s.sh c", now: "test b TestS",
			rules: "check s.sh * -> test b TestS",
			want:  "check s.sh a > b -> test b TestS\ncheck s.sh c -> test b TestS\n"},
		{name: "all but one", old: "check s.sh a\ncheck s.sh c", now: "test b TestS\ntest b TestC",
			rules: "check s.sh * -> test b TestS\ncheck s.sh c -> test b TestC",
			want:  "check s.sh a -> test b TestS\ncheck s.sh c -> test b TestC\n"},
		{name: "the longer beginning", old: "subtest a T/x1\nsubtest a T/y1", now: "test b TestX\ntest b TestY",
			rules: "subtest a T/* -> test b TestX\nsubtest a T/y* -> test b TestY",
			want:  "subtest a T/x1 -> test b TestX\nsubtest a T/y1 -> test b TestY\n"},
		{name: "the rest carried", old: "corpus a F/1\ncorpus a F/2", now: "corpus b G/1\ncorpus b G/2",
			rules: "corpus a F/* -> corpus b G/*",
			want:  "corpus a F/1 -> corpus b G/1\ncorpus a F/2 -> corpus b G/2\n"},
		{name: "the rest carried, one lost", old: "corpus a F/1\ncorpus a F/2", now: "corpus b G/1",
			rules: "corpus a F/* -> corpus b G/*",
			wrong: "no heir: corpus a F/2"},
		{name: "another test took the name", old: "test a TestX", now: "test a TestX\ntest a TestY",
			rules: "test a TestX -> test a TestY",
			want:  "test a TestX -> test a TestY\n"},
		{name: "an heir that is not there", old: "test a TestX", now: "test a TestX",
			rules: "test a TestX -> test a TestY",
			wrong: "heir test a TestY: not in the new"},
		{name: "an heir of many that is not there", old: "check s.sh a", now: "check s.sh a",
			rules: "check s.sh * -> test b TestS",
			wrong: "heir test b TestS: not in the new"},
		{name: "a package that is not there", old: "test a TestX", now: "test a TestX", rules: "package a -> b",
			wrong: "heir b: the new inventory has none"},
		{name: "a rule for nothing", old: "test a TestX", now: "test a TestX", rules: "test a TestY -> test a TestX",
			wrong: "test a TestY: not in the old"},
		{name: "a package rule for nothing", old: "test a TestX", now: "test a TestX", rules: "package b -> a",
			wrong: "package b: the old"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := Parse(c.rules)
			if err != nil {
				t.Fatal(err)
			}
			table, err := r.Close(entries(t, c.old), entries(t, c.now), c.shallow)
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) {
					t.Fatalf("error %v, want one with %q", err, c.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, l := range table {
				if l.Old != l.Heir {
					got.WriteString(l.Old.String() + entry.Arrow + l.Heir.String() + "\n")
				}
			}
			if got.String() != c.want {
				t.Errorf("table:\n%swant:\n%s", got.String(), c.want)
			}
		})
	}
}

func TestParseRefusesWhatIsNoRule(t *testing.T) {
	for _, c := range []struct{ rules, want string }{
		{"test a TestX", "1: "},
		{"# note\n\ntest a TestX -> test a", "3: "},
		{"test a TestX -> nothing a TestY", "kind"},
		{"test a TestX -> test a TestY -> test a TestZ", "not OLD"},
		{"test a TestX -> test a TestY*", "ends in *"},
		{"test a TestX -> test a TestY\ntest a TestX -> test a TestZ", "2: "},
		{"package a b -> c", "package OLD"},
		{"package a -> b\npackage a -> c", "already"},
	} {
		if _, err := Parse(c.rules); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want one with %q", c.rules, err, c.want)
		}
	}
}
