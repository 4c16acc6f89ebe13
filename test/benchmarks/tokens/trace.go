package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// A request is one of a trace.
type request struct {
	at                 time.Duration // since the first
	context, generated int64         // tokens
}

// tokens returns what the request costs, which is known when its answer has ended.
func (r request) tokens() int64 { return r.context + r.generated }

// The columns of a trace, in any order, and beside others.
var columns = []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}

// mostTokens bounds what a request may have, far above what any model takes.
const mostTokens = 1_000_000_000

// parse reads a trace. Its errors begin with the name and the line.
func parse(name string, from io.Reader) (trace []request, err error) {
	r := csv.NewReader(from)
	r.ReuseRecord = true
	fault := func(column int, err error) error {
		line, _ := r.FieldPos(column)
		return fmt.Errorf("%s:%d: %w", name, line, err)
	}
	head, err := r.Read()
	if err != nil {
		return nil, inFile(name, err)
	}
	var at [3]int // of the columns
	for i, c := range columns {
		if at[i] = slices.Index(head, c); at[i] < 0 {
			return nil, fault(0, fmt.Errorf("there is no column %s", c))
		}
	}
	var first time.Time
	for {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, inFile(name, err)
		}
		when, err := time.Parse(time.DateTime, fields[at[0]])
		if err != nil {
			return nil, fault(at[0], fmt.Errorf("%s is not a time such as 2023-11-16 18:15:46.68: %q", columns[0], fields[at[0]]))
		}
		if len(trace) == 0 {
			first = when
		}
		next := request{at: when.Sub(first)}
		if len(trace) > 0 && next.at < trace[len(trace)-1].at {
			return nil, fault(at[0], errors.New("the request is earlier than the one before"))
		}
		for i, n := range []*int64{&next.context, &next.generated} {
			column := at[1+i]
			if *n, err = strconv.ParseInt(fields[column], 10, 64); err != nil || *n < 0 || *n > mostTokens {
				return nil, fault(column, fmt.Errorf("%s is not a number from 0 to %d: %q", columns[1+i], int64(mostTokens), fields[column]))
			}
		}
		trace = append(trace, next)
	}
	if len(trace) == 0 || trace[len(trace)-1].at == 0 {
		return nil, fmt.Errorf("%s: the trace has no two requests at different times", name)
	}
	return trace, nil
}

// inFile returns the error of a csv.Reader with the name and the line.
func inFile(name string, err error) error {
	var p *csv.ParseError
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s:1: the file is empty", name)
	case errors.As(err, &p):
		return fmt.Errorf("%s:%d: %w", name, p.Line, p.Err)
	default:
		return fmt.Errorf("%s: %w", name, err)
	}
}
