package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"vnic.dev/vnic/cmd/vnic/internal/selftest/expect"
	"vnic.dev/vnic/cmd/vnic/internal/selftest/ktap"
	"vnic.dev/vnic/cmd/vnic/internal/selftest/results"
)

// The elements of JUnit's XML that Jenkins' schema (junit-10.xsd of its xUnit plugin) and GitLab's reader have in
// common.
type (
	suites struct {
		XMLName  xml.Name `xml:"testsuites"`
		Name     string   `xml:"name,attr"`
		Tests    int      `xml:"tests,attr"`
		Failures int      `xml:"failures,attr"`
		Errors   int      `xml:"errors,attr"`
		Time     string   `xml:"time,attr"`
		Suites   []suite  `xml:"testsuite"`
	}
	suite struct {
		Name       string     `xml:"name,attr"`
		Tests      int        `xml:"tests,attr"`
		Failures   int        `xml:"failures,attr"`
		Errors     int        `xml:"errors,attr"`
		Skipped    int        `xml:"skipped,attr"`
		Time       string     `xml:"time,attr"`
		Properties []property `xml:"properties>property"`
		Cases      []testcase `xml:"testcase"`
		SystemOut  string     `xml:"system-out,omitempty"`
	}
	property struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	testcase struct {
		Name      string   `xml:"name,attr"`
		Class     string   `xml:"classname,attr"`
		Time      string   `xml:"time,attr"`
		Skipped   *message `xml:"skipped"`
		Error     *message `xml:"error"`
		Failure   *message `xml:"failure"`
		SystemOut string   `xml:"system-out,omitempty"`
	}
	message struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// JUnit writes a run for CI: a suite for each program, a failure or error for each case that does not match what is
// expected. A case that fails as expected is skipped, with its reason, so that CI is red exactly when the exit status
// is not 0. Where there is no judgement, each case that failed is a failure.
func JUnit(w io.Writer, run *results.Run, j *expect.Judgement) error {
	all := suites{Name: "vnic selftest: " + device(run)}
	total := 0.0
	for i := range run.Programs {
		p := &run.Programs[i]
		s := junitSuite(run, p, &j.Programs[i])
		all.Suites = append(all.Suites, s)
		all.Tests, all.Failures, all.Errors = all.Tests+s.Tests, all.Failures+s.Failures, all.Errors+s.Errors
		total += p.Seconds
	}
	all.Time = seconds(total)
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func seconds(s float64) string { return fmt.Sprintf("%.3f", s) }

func junitSuite(run *results.Run, p *results.Program, j *expect.ProgramJudgement) suite {
	s := suite{Name: p.Name, Time: seconds(p.Seconds), SystemOut: strings.Join(p.Diagnostics, "\n")}
	if p.Column != results.Unmodified {
		s.Name = fmt.Sprintf("%s (%s)", p.Name, p.Column)
	}
	s.Properties = []property{{"model", run.Model}, {"device", run.Device}, {"kernel", run.Kernel},
		{"column", string(p.Column)}}
	class := strings.NewReplacer("/", ".", ".py", "").Replace(p.Name) // Jenkins makes a package of what is before a dot
	for i := range j.Cases {
		c := &j.Cases[i]
		t := testcase{Name: c.Case, Class: class, Time: seconds(0)}
		switch {
		case c.Verdict == expect.Missing:
			t.Error = &message{Message: describe(c), Type: string(c.Verdict)}
		case c.Verdict == expect.Complained:
			t.Name += ": kernel" // beside the case itself
			t.Error = &message{Message: c.Note, Type: string(c.Verdict), Text: trace(p, c)}
		case c.Verdict == expect.Unproved:
			t.Name = "payload in device memory"
			t.Failure = &message{Message: c.Note, Type: string(c.Verdict)}
		default:
			junitCase(&t, p.Case(c.Case), c)
		}
		if t.Error != nil {
			s.Errors++
		} else if t.Failure != nil {
			s.Failures++
		} else if t.Skipped != nil {
			s.Skipped++
		}
		s.Cases = append(s.Cases, t)
	}
	s.Tests = len(s.Cases)
	return s
}

// junitCase fills in a case that has a result.
func junitCase(t *testcase, c *results.Case, j *expect.Judged) {
	t.Time = seconds(c.Seconds)
	text := strings.Join(c.Diagnostics, "\n")
	switch {
	case !j.Verdict.Matches() || j.Verdict == expect.Unjudged && c.Result.Bad():
		m := &message{Message: describe(j), Type: string(c.Result), Text: text}
		if first, _, _ := strings.Cut(c.Reason, "\n"); first != "" {
			m.Message += ": " + first
		}
		if c.Result == ktap.Error {
			t.Error = m
		} else {
			t.Failure = m
		}
	case c.Result == ktap.Pass:
		t.SystemOut = text
	default:
		why := describe(j)
		if j.Expected == nil && c.Reason != "" {
			why += ": " + c.Reason
		}
		t.Skipped, t.SystemOut = &message{Message: why}, text
	}
}

// trace is the block of the complaint that a judgement is about.
func trace(p *results.Program, j *expect.Judged) string {
	for i := range p.Splats {
		s := &p.Splats[i]
		if s.Case == j.Case && strings.HasPrefix(j.Note, s.Title) {
			return strings.Join(s.Lines, "\n")
		}
	}
	return ""
}
