package main

import (
	"strings"
	"testing"

	"vnic.dev/vnic/tools/internal/treetest"
)

func TestEachFileCountsInItsClass(t *testing.T) {
	dir := treetest.New(t, map[string]string{
		".gitignore":                  "/bin/\n",
		"bin/ignored.go":              "package bin\nvar x int\n",
		"dma/a.go":                    "// Package dma.\npackage dma\n\nvar a int\n",
		"dma/a_test.go":               "package dma\nvar b int\nvar c int\n",
		"dma/testdata/guest/m.go":     "package main\n",
		"dma/testdata/x.golden":       "1\n2\n3\n",
		"cmd/testdata/script/a.txtar": "# no\nexec x\n",
		"nic/nictest/suite.go":        "package nictest\n\nimport \"testing\"\n\nvar _ testing.TB\n",
		"nic/nictest/deep/d.go":       "package deep\n",
		"test/1.sh":                   "#!/bin/sh\ntrue\n",
		"test/internal/x.go":          "package x\n",
		"test/run":                    "#!/bin/sh\ntrue\n",
		"packaging/i.sh":              "#!/bin/sh\ntrue\n",
		"tools/fuzz":                  "#!/bin/sh\ntrue\ntrue\n",
		"README.md":                   "words\n",
	})
	var out strings.Builder
	if err := run([]string{"--packages", dir}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"product: 3 lines\n", // dma/a.go and packaging/i.sh
		"tests, support and acceptance: 12 lines\n",
		" 2           4        0           0      0  dma\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	for _, c := range []struct {
		args []string
		ok   bool
	}{
		{[]string{"--most", "3", "--beside", "12"}, true},
		{[]string{"--most", "2"}, false},
		{[]string{"--beside", "11"}, false},
	} {
		if err := run(append(c.args, dir), &strings.Builder{}); (err == nil) != c.ok {
			t.Errorf("%v: error %v", c.args, err)
		}
	}
}

func TestTestSupportThatIsNotListedIsAnError(t *testing.T) {
	dir := treetest.New(t, map[string]string{"nic/rig/a.go": "package rig\n\nimport \"testing\"\n\nvar _ testing.TB\n"})
	if err := run([]string{dir}, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), "nic/rig/a.go") {
		t.Errorf("error %v", err)
	}
}

func TestWideLines(t *testing.T) {
	dir := treetest.New(t, map[string]string{
		"a.go": "package a\n// " +
			strings.Repeat("ä", 117) + "\n\t//" + strings.Repeat("x", 117) + "\n",
		"data.json":                     strings.Repeat("x", 200),
		"testdata/a.golden":             strings.Repeat("x", 200),
		"cmd/testdata/golden-x/a.txtar": "exec x\n-- golden --\n" + strings.Repeat("x", 200),
	})
	if err := run([]string{"--wide", dir}, &strings.Builder{}); err != nil {
		t.Errorf("lines of 120 characters: %v", err)
	}
	dir = treetest.New(t, map[string]string{
		"README.md":                   "# a\n| " + strings.Repeat("x", 119) + "\n",
		"cmd/testdata/script/a.txtar": "exec " + strings.Repeat("x", 116) + "\n",
		"s":                           "#!/bin/sh\n" + strings.Repeat("x", 121) + "\n",
	})
	var out strings.Builder
	if err := run([]string{"--wide", dir}, &out); err == nil {
		t.Error("lines of 121 characters pass")
	}
	want := "README.md:2: 121 characters\ncmd/testdata/script/a.txtar:1: 121 characters\ns:2: 121 characters\n"
	if out.String() != want {
		t.Errorf("it prints %q, want %q", out.String(), want)
	}
}

func TestNoCheckoutIsAnError(t *testing.T) {
	t.Setenv("GIT_CEILING_DIRECTORIES", "/")
	err := run([]string{t.TempDir()}, &strings.Builder{})
	if err == nil || !strings.Contains(err.Error(), "git checkout") {
		t.Errorf("error %v", err)
	}
}
