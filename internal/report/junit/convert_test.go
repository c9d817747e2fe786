package junit

import (
	"encoding/xml"
	"fmt"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// convert converts text, and returns each suite as a line.
func convert(t *testing.T, text string, status int) string {
	t.Helper()
	all := testkit.Must(Convert(strings.NewReader(text), "test", status))(t)
	var b strings.Builder
	testkit.OK(t, all.Write(&b))
	var back Suites
	testkit.OK(t, xml.Unmarshal([]byte(b.String()), &back))
	tests, failures, errors := 0, 0, 0
	b.Reset()
	for _, s := range back.Suites {
		fmt.Fprintf(&b, "%s %d/%d/%d/%d:", s.Name, s.Tests, s.Failures, s.Errors, s.Skipped)
		tests, failures, errors = tests+s.Tests, failures+s.Failures, errors+s.Errors
		for _, c := range s.Cases {
			mode := "ok"
			for word, m := range map[string]*Message{"skip": c.Skipped, "error": c.Error, "fail": c.Failure} {
				if m != nil {
					mode = word + "(" + m.Message + ")"
				}
			}
			fmt.Fprintf(&b, " %s=%s", c.Name, mode)
		}
		b.WriteByte('\n')
	}
	if back.Tests != tests || back.Failures != failures || back.Errors != errors {
		t.Errorf("%+v", back)
	}
	return b.String()
}

// Invariant: vnic junit: The suites of a program that ends with a status other than 0 have a
// failure or an error, whatever it printed.
func TestConvert(t *testing.T) {
	for _, c := range []struct {
		name, text string
		status     int
		want       string
	}{
		{"TAP", "TAP version 13\n1..3\nok 1 - one\nnot ok 2 - two\nok 3 - three # SKIP no NIC\n", 1,
			"test 3/1/0/1: one=ok two=fail(fail) three=skip(no NIC)\n"},
		{"TAP that skips all", "TAP version 13\n1..0 # SKIP no NIC\n", 0, "test 1/0/0/1: test=skip(no NIC)\n"},
		{"TAP that breaks off", "1..2\nok 1 one\n", 139, "test 2/0/1/0: one=ok #2=error(the program ended by signal 11)\n"},
		{"green, but the status is not", "1..1\nok 1 one\n", 3,
			"test 1/0/0/0: one=ok\ntest: exit status 1/1/0/0: test=fail(the program ended with status 3)\n"},
		{"nothing of the kind", "hello\n", 0, "test 1/0/0/0: test=ok\n"},
		{"nothing of the kind, and it failed", "hello\n", 4, "test 1/1/0/0: test=fail(the program ended with status 4)\n"},
		{"nothing", "", 0, "test 1/0/0/0: test=ok\n"},
		{"nothing, and it failed", "", 124, "test 1/1/0/0: test=fail(the program ended with status 124)\n"},
		{"two guests", "[0] 1..1\n[1] 1..1\n[1] not ok 1 b\n[0] ok 1 a\n", 1,
			"test, guest0 1/0/0/0: a=ok\ntest, guest1 1/1/0/0: b=fail(fail)\n"},
		{"go test", `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: got 1\n"}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0.5}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Test":"TestC"}
{"Action":"run","Package":"p","Test":"TestD"}
{"Action":"fail","Package":"p","Elapsed":0.7}
`, 1, "p (test) 4/1/1/1: TestA=fail(a_test.go:3: got 1) TestB=skip(failed) TestC=ok TestD=error(it has not ended)\n"},
		{"go test that does not build", `{"ImportPath":"p","Action":"build-output","Output":"# p\n"}
{"ImportPath":"p","Action":"build-output","Output":"./a.go:3: undefined: x\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"p"}
`, 1, "p (test) 1/0/1/0: package=error(./a.go:3: undefined: x)\n"},
		{"not XML", "1..1\nnot ok 1 <a>&\x01\"]]>\n", 1, "test 1/1/0/0: <a>&\ufffd\"]]>=fail(fail)\n"},
	} {
		t.Run(c.name, func(t *testing.T) { testkit.Equal(t, "suites", convert(t, c.text, c.status), c.want) })
	}
}

func TestConvertIsBounded(t *testing.T) {
	var b strings.Builder
	for i := range 2 * MaxCases {
		fmt.Fprintf(&b, "ok %d case\n[%d] ok 1 x\n", i+1, i%1000)
	}
	all := testkit.Must(Convert(strings.NewReader(b.String()), "test", 0))(t)
	if len(all.Suites) > MaxGuests || all.Tests > MaxCases+MaxGuests*20 {
		t.Errorf("%d suites, %d cases", len(all.Suites), all.Tests)
	}
	long := strings.Repeat("x", 3*maxLine)
	all = testkit.Must(Convert(strings.NewReader(long+"\n"+long), "test", 1))(t)
	if n := len(all.Suites[0].Cases[0].Failure.Text); n > 2*maxLine {
		t.Errorf("%d bytes of output are kept", n)
	}
}

func FuzzConvert(f *testing.F) {
	f.Add("TAP version 13\n1..1\nok 1 a\n", 0)
	f.Add("{\"Action\":\"pass\",\"Package\":\"p\"}\n", 0)
	f.Add("[0] ok 1\n[1] not ok 1\n", 1)
	f.Fuzz(func(t *testing.T, text string, status int) {
		status &= 255
		all, err := Convert(strings.NewReader(text), "test", status)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := all.Write(&b); err != nil {
			t.Fatal(err)
		}
		var back Suites
		if err := xml.Unmarshal([]byte(b.String()), &back); err != nil {
			t.Fatalf("%v\n%s", err, b.String())
		}
		if status != 0 && back.Failures+back.Errors == 0 {
			t.Errorf("status %d is green: %s", status, b.String())
		}
	})
}
