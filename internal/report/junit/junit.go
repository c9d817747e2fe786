// Package junit writes the XML by which CI shows results of tests, and makes it from TAP, the kernel's KTAP, or
// `go test -json`. The output may come from a guest, which may print anything: Convert bounds what it keeps.
package junit

import (
	"encoding/xml"
	"fmt"
	"io"
)

// Elements of the XML, as in Jenkins' schema (junit-10.xsd of its xUnit plugin).
type (
	// Suites has all suites of a run.
	Suites struct {
		XMLName  xml.Name `xml:"testsuites"`
		Name     string   `xml:"name,attr"`
		Tests    int      `xml:"tests,attr"`
		Failures int      `xml:"failures,attr"`
		Errors   int      `xml:"errors,attr"`
		Time     Seconds  `xml:"time,attr"`
		Suites   []Suite  `xml:"testsuite"`
	}
	// Suite has the cases of a program, of a guest or of a package of Go.
	Suite struct {
		Name       string     `xml:"name,attr"`
		Tests      int        `xml:"tests,attr"`
		Failures   int        `xml:"failures,attr"`
		Errors     int        `xml:"errors,attr"`
		Skipped    int        `xml:"skipped,attr"`
		Time       Seconds    `xml:"time,attr"`
		Properties []Property `xml:"properties>property"`
		Cases      []Case     `xml:"testcase"`
		SystemOut  string     `xml:"system-out,omitempty"`
	}
	// Property is a name and a value that describe a suite.
	Property struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	// Case is one test.
	Case struct {
		Name      string   `xml:"name,attr"`
		Class     string   `xml:"classname,attr"`
		Time      Seconds  `xml:"time,attr"`
		Skipped   *Message `xml:"skipped"`
		Error     *Message `xml:"error"`
		Failure   *Message `xml:"failure"`
		SystemOut string   `xml:"system-out,omitempty"`
	}
	// Message has the reason for which a case did not pass.
	Message struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// Seconds is a time, which the XML has with three decimals.
type Seconds float64

// MarshalText writes the seconds.
func (s Seconds) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%.3f", float64(s)), nil }

// Add adds a suite. It counts the suite's tests, failures, errors and skips from its cases, a case with an error as
// that alone, and adds these counts (without skips) and the suite's time to the totals of a.
func (a *Suites) Add(s Suite) {
	s.Tests = len(s.Cases)
	for i := range s.Cases {
		switch c := &s.Cases[i]; {
		case c.Error != nil:
			s.Errors++
		case c.Failure != nil:
			s.Failures++
		case c.Skipped != nil:
			s.Skipped++
		}
	}
	a.Suites = append(a.Suites, s)
	a.Tests, a.Failures, a.Errors, a.Time = a.Tests+s.Tests, a.Failures+s.Failures, a.Errors+s.Errors, a.Time+s.Time
}

// Write writes the document.
func (a *Suites) Write(w io.Writer) error {
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(a); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
