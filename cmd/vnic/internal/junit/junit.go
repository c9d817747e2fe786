// Package junit writes the XML by which CI shows results of tests, and makes it of what programs print: TAP, the
// kernel's KTAP, or `go test -json`.
//
// What is read may come from a guest, which may print anything. Nothing of it makes Convert fail but a reader's error,
// and it keeps no more than its bounds: MaxCases cases of MaxOutput bytes each, of MaxGuests guests. Text is made valid
// XML by encoding/xml.
package junit

import (
	"encoding/xml"
	"fmt"
	"io"
)

// The elements that Jenkins' schema (junit-10.xsd of its xUnit plugin) and GitLab's reader have in common.
type (
	// Suites is all of a run.
	Suites struct {
		XMLName  xml.Name `xml:"testsuites"`
		Name     string   `xml:"name,attr"`
		Tests    int      `xml:"tests,attr"`
		Failures int      `xml:"failures,attr"`
		Errors   int      `xml:"errors,attr"`
		Time     string   `xml:"time,attr"` // Seconds
		Suites   []Suite  `xml:"testsuite"`
	}
	// Suite is a program's.
	Suite struct {
		Name       string     `xml:"name,attr"`
		Tests      int        `xml:"tests,attr"`
		Failures   int        `xml:"failures,attr"`
		Errors     int        `xml:"errors,attr"`
		Skipped    int        `xml:"skipped,attr"`
		Time       string     `xml:"time,attr"`
		Properties []Property `xml:"properties>property"`
		Cases      []Case     `xml:"testcase"`
		SystemOut  string     `xml:"system-out,omitempty"`
	}
	// Property is something that holds for a suite.
	Property struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	// Case is one test.
	Case struct {
		Name      string   `xml:"name,attr"`
		Class     string   `xml:"classname,attr"`
		Time      string   `xml:"time,attr"`
		Skipped   *Message `xml:"skipped"`
		Error     *Message `xml:"error"`
		Failure   *Message `xml:"failure"`
		SystemOut string   `xml:"system-out,omitempty"`
	}
	// Message is why a case did not pass.
	Message struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// Seconds is how the XML has times.
func Seconds(s float64) string { return fmt.Sprintf("%.3f", s) }

// Count sets a suite's numbers by its cases.
func (s *Suite) Count() {
	s.Tests, s.Failures, s.Errors, s.Skipped = len(s.Cases), 0, 0, 0
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
}

// Add adds a suite.
func (a *Suites) Add(s Suite) {
	a.Suites = append(a.Suites, s)
	a.Tests, a.Failures, a.Errors = a.Tests+s.Tests, a.Failures+s.Failures, a.Errors+s.Errors
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
