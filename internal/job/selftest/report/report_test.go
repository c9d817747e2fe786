package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/golden"
	"vnic.dev/vnic/internal/job/selftest/expect"
	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
	"vnic.dev/vnic/internal/job/selftest/splat"
	"vnic.dev/vnic/internal/report/junit"
	"vnic.dev/vnic/internal/schematest"
	"vnic.dev/vnic/internal/testkit"
)

const suiteFile = `kernel: "7.2"
patches: {combined-channels: {does: take rx and tx channels for combined ones, numbers: [1]}}
programs:
  queues.py: [get_queues, addremove_queues, check_down, check_xsk]
  hw/devmem.py: [check_rx, check_tx]
  hw/ntuple.py: [queue.tcp4, queue.tcp6]
  stats.py: [check_pause, check_down, hammer]
`

const modelFile = `model: gve
kernel: "7.2"
programs:
  queues.py: {unmodified: {cases: [{case: "*", expect: pass}]}}
  hw/devmem.py: {unmodified: {cases: [{case: "*", expect: pass}]}}
  hw/ntuple.py:
    unmodified:
      cases: [{case: "*", expect: fail, class: test, evidence: combined-channels, text: "KeyError: 'combined-max'"}]
    patched: {cases: [{case: "*", expect: pass}]}
  stats.py:
    unmodified:
      cases:
        - {case: check_pause, expect: skip, class: driver, evidence: "drivers/net/x.c:7", text: no pause parameters}
        - {case: check_down, expect: left-out, class: driver, evidence: "drivers/net/x.c:9", text: the kernel oopses}
        - {case: hammer, expect: xfail, text: its author says so}
`

// example returns a run with many kinds of results, and the expectations of modelFile.
func example(t *testing.T) (*results.Run, *expect.Expectations) {
	t.Helper()
	suite := testkit.Must(expect.ParseSuite("suite", []byte(suiteFile)))(t)
	x := testkit.Must(expect.Parse("model", []byte(modelFile), suite, nil))(t)
	c := func(name string, r ktap.Result) results.Case {
		return results.Case{Name: name, Result: r, Seconds: 1.25}
	}
	failed := c("addremove_queues", ktap.Fail)
	failed.Diagnostics = []string{"Check| At queues.py, line 81, in addremove_queues:", "Check|     ksft_eq(a, b)",
		"Check failed 4 != 1 <&\"channels\">"}
	paused := c("check_pause", ktap.Skip)
	paused.Reason = "pause not supported by the device\nsecond line"
	late := c("get_queues", ktap.Timeout)
	late.Reason = "the program got SIGTERM"
	for i := range 20 {
		late.Diagnostics = append(late.Diagnostics, strings.Repeat("x", i))
	}
	crashed := c("check_xsk", ktap.Error)
	crashed.Reason = "the guest's kernel has panicked"
	return &results.Run{Schema: results.Schema, Model: "gve", Device: "vnic", Queues: 4,
		Kernel: "7.2.12+deb13-cloud-amd64", Versions: map[string]string{"vnic": "0.1", "tests": "7.2"}, Accel: "tcg",
		Programs: []results.Program{
			{Name: "queues.py", Column: results.Unmodified, Planned: 4, Seconds: 5,
				Cases:  []results.Case{late, failed, crashed},
				NotRun: []string{"check_down"}, Exit: "the guest's kernel has panicked",
				Splats: []results.Splat{{Case: "check_xsk", Splat: splat.Splat{Kind: splat.Oops, Time: "12.000001",
					Title: "BUG: kernel NULL pointer dereference, address: 00000000000000a0", Function: "gve_xsk", Module: "gve",
					Lines: []string{"BUG: kernel NULL pointer dereference, address: 00000000000000a0",
						"RIP: 0010:gve_xsk+0x17/0x50 [gve]"}}}}},
			{Name: "hw/devmem.py", Column: results.Unmodified, Planned: 2, Seconds: 1.5,
				Cases:  []results.Case{c("check_rx", ktap.Pass), c("check_tx", ktap.Pass)},
				Devmem: &results.Devmem{DeviceBytes: 1 << 20, HostBytes: 17, Why: "17 bytes went to host memory"}},
			{Name: "hw/ntuple.py", Column: results.Unmodified, Planned: 2, Seconds: 0.5,
				Cases: []results.Case{c("queue.tcp4", ktap.Fail), c("queue.tcp6", ktap.Fail)}},
			{Name: "hw/ntuple.py", Column: results.Patched, Planned: 2, Seconds: 2.25,
				Cases:       []results.Case{c("queue.tcp4", ktap.Pass), c("queue.tcp6", ktap.Skip)},
				Diagnostics: []string{"said at the end"}},
			{Name: "stats.py", Column: results.Unmodified, Planned: 2, Seconds: 3,
				Cases: []results.Case{paused, c("hammer", ktap.Pass)}},
			{Name: "psp.py", Column: results.Unmodified, Planned: -1, Seconds: 0.125,
				Cases: []results.Case{{Name: ktap.Whole, Result: ktap.Fail, Reason: "the program ended with status 1"}}},
		}}, x
}

// good returns example's run with only two programs, whose results are all as expected, and the expectations.
func good(t *testing.T) (*results.Run, *expect.Expectations) {
	run, x := example(t)
	run.Programs = run.Programs[1:3]
	run.Programs[0].Devmem = &results.Devmem{DeviceBytes: 1 << 20, Proved: true}
	return run, x
}

func unknown(t *testing.T) (*results.Run, *expect.Judgement) {
	run, _ := example(t)
	run.Kernel = "6.12.1"
	run.Programs = append(run.Programs[2:4:4], results.Program{Name: "gro.py", Column: results.Patched, Planned: -1,
		Cases: []results.Case{}, Left: []string{"0010-gro.patch", "0021-order.patch"}})
	return run, testkit.Must(expect.Judge(run))(t)
}

// newTroubles returns a run with a complaint of the kernel and with payload that is not proved, and the run's
// judgement. There are no expectations for the run's kernel.
func newTroubles(t *testing.T) (*results.Run, *expect.Judgement) {
	run, _ := example(t)
	run.Kernel = "6.12.1"
	run.Programs = run.Programs[:2]
	return run, testkit.Must(expect.Judge(run))(t)
}

func text(t *testing.T, write func(*bytes.Buffer) error) string {
	t.Helper()
	var b bytes.Buffer
	testkit.OK(t, write(&b))
	return b.String()
}

func TestReports(t *testing.T) {
	got := map[string]string{}
	add := func(name string, run *results.Run, j *expect.Judgement) {
		got[name+"-table"] = text(t, func(b *bytes.Buffer) error { return Table(b, run, j) })
		got[name+"-json"] = text(t, func(b *bytes.Buffer) error { return JSON(b, run, j) })
		got[name+"-junit"] = text(t, func(b *bytes.Buffer) error { return JUnit(b, run, j) })
	}
	run, x := example(t)
	add("all", run, x.Judge(run))
	fine, _ := good(t)
	add("good", fine, x.Judge(fine))
	old, j := unknown(t)
	add("unknown", old, j)
	troubled, j := newTroubles(t)
	add("new-troubles", troubled, j)
	old.Device, old.Model = "qemu", "virtio-net-pci"
	got["side-by-side"] = text(t, func(b *bytes.Buffer) error { return SideBySide(b, []*results.Run{run, old}) })
	golden.Check(t, "testdata/golden", got)
}

func TestNICsWithOneQueue(t *testing.T) {
	for want, run := range map[string]results.Run{
		"gve on vnic, 1 queue":   {Model: "gve", Device: "vnic", Queues: 1},
		"gve on vnic":            {Model: "gve", Device: "vnic", Queues: 2},
		"virtio-net-pci on qemu": {Model: "virtio-net-pci", Device: "qemu", Queues: 1},
	} {
		testkit.Equal(t, "NIC", device(&run), want)
	}
}

func TestVerdictOfARunThatIsNotJudged(t *testing.T) {
	got := text(t, func(b *bytes.Buffer) error { return verdict(b, &expect.Judgement{Why: "kernel 5.4 is not known"}) })
	testkit.Equal(t, "verdict", got, "\nnot judged: kernel 5.4 is not known\n")
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, run *results.Run) string {
		name = filepath.Join(dir, name)
		testkit.OK(t, os.WriteFile(name, testkit.Must(json.Marshal(run))(t), 0o600))
		return name
	}
	theirs, _ := example(t)
	theirs.Device, theirs.Model = "qemu", "virtio-net-pci"
	ours, _ := example(t)
	a, b := write("theirs", theirs), write("ours", ours)
	want := text(t, func(b *bytes.Buffer) error {
		runs := []*results.Run{theirs, ours}
		return errors.Join(SideBySide(b, runs), testkit.Err(Yardstick(b, runs)))
	})
	testkit.Equal(t, "text", text(t, func(out *bytes.Buffer) error { return Files(out, []string{a, b}) }), want)

	ours.Model = "virtio"
	for i := range ours.Programs {
		for k := range ours.Programs[i].Cases {
			ours.Programs[i].Cases[k].Result = ktap.Fail
		}
	}
	testkit.ErrorSays(t, Files(io.Discard, []string{a, write("worse", ours)}), "the reason is vnic's")
	for text, want := range map[string]string{"{": "unexpected end of JSON input", "{}": "schema 0, not ",
		`{"schema": 99}`: "schema 99, not ", `{"schema": 99, "model": 2}`: "schema 99, not ",
		fmt.Sprintf(`{"schema": %d, "model": 2}`, results.Schema): "json: cannot unmarshal number into"} {
		testkit.OK(t, os.WriteFile(b, []byte(text), 0o600))
		err := Files(io.Discard, []string{b})
		testkit.ErrorSays(t, err, b+": no result of vnic selftest --json of this version: "+want)
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: two reasons: %v", text, err)
		}
	}
	testkit.ErrorIs(t, Files(io.Discard, []string{filepath.Join(dir, "none")}), os.ErrNotExist)
}

// With runs on QEMU's virtio-net and on vnic's virtio, Yardstick lists the cases that pass on the former and in no run
// on the latter, and counts the listed cases that fail or have no result.
func TestYardstick(t *testing.T) {
	run := func(model, device string, result ktap.Result, cases ...string) *results.Run {
		p := results.Program{Name: "gro.py", Column: results.Unmodified}
		for _, c := range cases {
			p.Cases = append(p.Cases, results.Case{Name: c, Result: result})
		}
		return &results.Run{Model: model, Device: device, Programs: []results.Program{p}}
	}
	theirs := run("virtio-net-pci", "qemu", ktap.Pass, "a", "b", "c", "d", "e")
	for _, c := range []struct {
		failures int
		says     string
		runs     []*results.Run
	}{
		{0, "", []*results.Run{theirs}},
		{0, "", []*results.Run{theirs, run("gve", "vnic", ktap.Fail, "a")}},
		{0, "\nAll that passes on virtio-net-pci on qemu passes on vnic's virtio.\n",
			[]*results.Run{theirs, run("virtio", "vnic", ktap.Pass, "a", "b", "c", "d", "e")}},
		{5, "\nWhat passes on virtio-net-pci on qemu, and not on vnic's virtio:\n\n- gro.py, fail: a, b, c and 1 more\n" +
			"- gro.py, no result: e\n", []*results.Run{run("virtio", "vnic", ktap.Fail, "a", "b", "c", "d"), theirs}},
		{0, "\nWhat passes on virtio-net-pci on qemu, and not on vnic's virtio:\n\n- gro.py, xfail: b, c\n",
			[]*results.Run{theirs, run("virtio-xdp", "vnic", ktap.Pass, "a", "d", "e"),
				run("virtio", "vnic", ktap.XFail, "b", "c", "d")}},
	} {
		failures := -1
		got := text(t, func(b *bytes.Buffer) (err error) {
			failures, err = Yardstick(b, c.runs)
			return err
		})
		testkit.Equal(t, "says", got, c.says)
		testkit.Equal(t, "failures", failures, c.failures)
	}
}

// The XML of each of these runs has failures or errors if, and only if, the judgement's exit status is not 0.
func TestJUnitAgreesWithTheStatus(t *testing.T) {
	bad, x := example(t)
	fine, _ := good(t)
	old, isNew := unknown(t)
	complained, _ := newTroubles(t)
	complained.Programs = complained.Programs[:1]
	troubled, unproved := newTroubles(t)
	ofQEMU := func(failed bool) *results.Run {
		run, _ := unknown(t)
		run.Device, run.Model = "qemu", "virtio-net-pci"
		for i := range run.Programs {
			for k := range run.Programs[i].Cases {
				if !failed {
					run.Programs[i].Cases[k].Result = ktap.Pass
				}
			}
		}
		return run
	}
	for name, c := range map[string]struct {
		run *results.Run
		j   *expect.Judgement
	}{
		"bad": {bad, x.Judge(bad)}, "good": {fine, x.Judge(fine)}, "new": {old, isNew},
		"new complaint": {complained, testkit.Must(expect.Judge(complained))(t)}, "new, not proved": {troubled, unproved},
		"unjudged, bad":  {ofQEMU(true), testkit.Must(expect.Judge(ofQEMU(true)))(t)},
		"unjudged, good": {ofQEMU(false), testkit.Must(expect.Judge(ofQEMU(false)))(t)},
	} {
		var all junit.Suites
		testkit.OK(t, xml.Unmarshal([]byte(text(t, func(b *bytes.Buffer) error { return JUnit(b, c.run, c.j) })), &all))
		red := all.Failures+all.Errors > 0
		if red != (c.j.Status() != 0) || len(all.Suites) != len(c.run.Programs) {
			t.Errorf("%s: %d failures and %d errors in %d suites, status %d", name, all.Failures, all.Errors, len(all.Suites),
				c.j.Status())
		}
		tests := 0
		for _, s := range all.Suites {
			failures, errors, skipped := 0, 0, 0
			for _, c := range s.Cases {
				if c.Failure != nil {
					failures++
				}
				if c.Error != nil {
					errors++
				}
				if c.Skipped != nil {
					skipped++
				}
			}
			tests += s.Tests
			if failures != s.Failures || errors != s.Errors || skipped != s.Skipped || len(s.Cases) != s.Tests {
				t.Errorf("%s, %s: %d/%d/%d of %d, not %d/%d/%d of %d", name, s.Name, s.Failures, s.Errors, s.Skipped, s.Tests,
					failures, errors, skipped, len(s.Cases))
			}
		}
		testkit.Equal(t, name+": tests", all.Tests, tests)
	}
}

func TestOutputComesThrough(t *testing.T) {
	for name, want := range map[string]struct {
		tests, bad int
		has        string
	}{
		"demo":   {10, 4, "No such file or directory"},
		"colour": {2, 1, "a b\ufffdc \ufffdd \ufffd"},
	} {
		r := results.NewRecorder(results.Options{Name: name + ".py", Column: results.Unmodified})
		r.Write(testkit.Must(os.ReadFile("../ktap/testdata/" + name + ".ktap"))(t))
		run := &results.Run{Model: "e1000e", Device: "qemu", Kernel: "6.12.1",
			Programs: []results.Program{r.End(ktap.Exit{Status: 1})}}
		j := testkit.Must(expect.Judge(run))(t)
		xmlText := text(t, func(b *bytes.Buffer) error { return JUnit(b, run, j) })
		var all junit.Suites
		testkit.OK(t, xml.Unmarshal([]byte(xmlText), &all))
		testkit.Equal(t, name+": tests", all.Tests, want.tests)
		testkit.Equal(t, name+": failures", all.Failures+all.Errors, want.bad)
		if !strings.Contains(xmlText, want.has) {
			t.Errorf("%s: no %q in %s", name, want.has, xmlText)
		}
	}
}

// With -update the test writes the schema.
func TestSchemaIsThatOfDocument(t *testing.T) {
	const dir = "internal/job/selftest/"
	schematest.Holds(t, "schema.json", "vnic selftest --json", &Document{}, "../../../..", dir+"report", dir+"results",
		dir+"expect", dir+"splat")
}

//go:embed schema.json
var schema string

// The schema accepts documents, and refuses them if a key is renamed.
func TestSchemaTakesWhatIsWritten(t *testing.T) {
	valid := schematest.Compile(t, schema)
	run, x := example(t)
	old, j := unknown(t)
	for _, text := range []string{
		text(t, func(b *bytes.Buffer) error { return JSON(b, run, x.Judge(run)) }),
		text(t, func(b *bytes.Buffer) error { return JSON(b, old, j) }),
		text(t, func(b *bytes.Buffer) error { return JSON(b, &results.Run{}, &expect.Judgement{}) }),
	} {
		testkit.OK(t, valid(text))
		for _, key := range []string{`"model"`, `"programs"`, `"judgement"`} {
			if valid(strings.Replace(text, key, `"x`+key[1:], 1)) == nil {
				t.Errorf("the schema takes a document without %s", key)
			}
		}
	}
}
