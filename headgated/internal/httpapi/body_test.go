package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// texts are bodies of charges, and what is wrong with them.
var texts = []struct{ text, fault string }{
	{` { "charges" : [ { "limit" : "a" , "key" : "b" , "units" : 3 , "plan" : null } ] , "settle" : true } `, ""},
	{`{"charges":[],"settle":false}` + "\n\t\r ", ""},
	{`{}`, ""},
	{`{"\u0063harges":[{"limit":"a","key":"\ud83c\udf89\u0000\/\b\\ufffd\ufffd"}]}`, ""},
	{`{"charges":[{"limit":"a","key":"` + "\u2028\ufffd\x7f" + `"}]}`, ""},
	{`{"charges":[{"limit":"a","key":"b","units":-9223372036854775808},{"limit":"a","key":"b","units":0}]}`, ""},
	{``, "the body is not an object"},
	{"\xef\xbb\xbf{}", "the body is not an object"},
	{`null`, "the body is not an object"},
	{`{}{}`, "the body has something behind its end"},
	{"{}\x00", "the body has something behind its end"},
	{`{`, "the body is not a string"},
	{`{"`, "the body ends before it is whole"},
	{`{"settle`, "the body ends before it is whole"},
	{`{"settle"`, "the body has no colon after settle"},
	{`{"settle":`, "settle is neither true nor false"},
	{`{"settle":true`, "the body ends before it is whole, or has no comma between two values"},
	{`{"settle":true,`, "the body is not a string"},
	{`{"settle":true,}`, "the body is not a string"},
	{`{,"settle":true}`, "the body is not a string"},
	{`{"settle":truee}`, "the body ends before it is whole, or has no comma between two values"},
	{`{"settle":True}`, "settle is neither true nor false"},
	{`{"settle":null}`, "settle is neither true nor false"},
	{`{"settle":true,"settle":true}`, "the body has settle twice"},
	{`{"settle":true,"s\u0065ttle":true}`, "the body has settle twice"},
	{`{"Settle":true}`, "the body has an unknown field: it may have charges, settle"},
	{`{"settle ":true}`, "the body has an unknown field: it may have charges, settle"},
	{`{"charges":null}`, "charges is not a list"},
	{`{"charges":[,]}`, "charges[0] is not an object"},
	{`{"charges":[{"limit":"a","key":"b"},]}`, "charges[1] is not an object"},
	{`{"charges":[{"limit":"a","key":"b"}{}]}`, "charges ends before it is whole, or has no comma between two values"},
	{`{"charges":[[[[[[]]]]]]}`, "charges[0] is not an object"},
	{`{"charges":[{"limit":"a","key":"b"},{"limit":"a"}]}`, "charges[1] has no limit or no key, or an empty one"},
	{`{"charges":[{"limit":"a","key":null}]}`, "charges[0].key is not a string"},
	{`{"charges":[{"limit":"a","key":"b","key":"b"}]}`, "charges[0] has key twice"},
	{`{"charges":[{"limit":"a","KEY":"b"}]}`, "charges[0] has an unknown field: it may have limit, key, plan, units"},
	{`{"charges":[{"limit":"a","key":"b","units":null}]}`, "charges[0].units is not a whole number of 64 bits"},
	{`{"charges":[{"limit":"a","key":"b","units":-0}]}`, "charges[0].units is not a whole number of 64 bits"},
	{`{"charges":[{"limit":"a","key":"b","units":01}]}`, "charges[0].units is not a whole number of 64 bits"},
	{`{"charges":[{"limit":"a","key":"b","units":+1}]}`, "charges[0].units is not a whole number of 64 bits"},
	{`{"charges":[{"limit":"a","key":"b","units":1.0}]}`, "charges[0].units is not a whole number of 64 bits"},
	{`{"charges":[{"limit":"a","key":"b","units":1e2}]}`, "charges[0].units is not a whole number of 64 bits"},
	{`{"charges":[{"limit":"a","key":"b","units":9223372036854775808}]}`, "charges[0].units is not a whole number of 64 bits"},
	{"{\"charges\":[{\"limit\":\"a\",\"key\":\"\xff\"}]}", "the body is not UTF-8"},
	{"{\"charges\":[{\"limit\":\"a\",\"key\":\"\xed\xa0\x80\"}]}", "the body is not UTF-8"},
	{"{\"charges\":[{\"limit\":\"a\",\"key\":\"\n\"}]}", "charges[0].key " + escapes},
	{`{"charges":[{"limit":"a","key":"\x"}]}`, "charges[0].key " + escapes},
	{`{"charges":[{"limit":"a","key":"\u00"}]}`, "charges[0].key " + escapes},
	{`{"charges":[{"limit":"a","key":"\ud83c"}]}`, "charges[0].key " + escapes},
	{`{"charges":[{"limit":"a","key":"\udf89\ud83c"}]}`, "charges[0].key " + escapes},
	{`{"charges":[{"limit":"a","key":"\\ufffd\ud83c"}]}`, "charges[0].key " + escapes},
	{`{"charges":[{"limit":"a","key":"\`, "charges[0].key ends before it is whole"},
	{`{"charges":[{"limit":"a","key":"\"`, "charges[0].key ends before it is whole"},
}

const escapes = "has an escape that is none, half a pair of them, or a control character that is not escaped"

func TestBody(t *testing.T) {
	for _, test := range texts {
		fault := ""
		if err := parse([]byte(test.text), new(asks).read); err != nil {
			fault = err.Error()
		}
		if fault != test.fault {
			t.Errorf("%q: %q, not %q", test.text, fault, test.fault)
		}
	}
}

// A body is taken if and only if a slow and obvious reader takes it, which understands it alike.
func FuzzBody(f *testing.F) {
	for _, test := range texts {
		f.Add([]byte(test.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got := new(asks)
		err := parse(text, got.read)
		want, fault := model(text)
		if (err == nil) != (fault == nil) {
			t.Fatalf("%q: %v, but the model says %v", text, err, fault)
		}
		if err == nil && (!slices.Equal(got.charges, want.charges) || got.settle != want.settle) {
			t.Errorf("%q: %v, not %v", text, got, want)
		}
	})
}

// half is an escape of half a character.
var half = regexp.MustCompile(`\\u[dD][89abABcdefCDEF]`)

// model reads a body with package json: all members into lists of names and values, and then what they mean.
func model(text []byte) (*asks, error) {
	if !json.Valid(text) || !utf8.Valid(text) {
		return nil, errors.New("no JSON")
	}
	// Pairs of halves that belong together are one character; then no half may be left. An escaped backslash is none.
	halves := strings.ReplaceAll(string(text), `\\`, "--")
	halves = regexp.MustCompile(`\\u[dD][89abAB]..\\u[dD][cdefCDEF]..`).ReplaceAllString(halves, "")
	if half.MatchString(halves) {
		return nil, errors.New("half a character")
	}
	body, err := members(text, "charges", "settle")
	if err != nil {
		return nil, err
	}
	read := new(asks)
	switch settle := string(body["settle"]); settle {
	case "true", "false", "":
		read.settle = settle == "true"
	default:
		return nil, errors.New("settle")
	}
	var charges []json.RawMessage
	if body["charges"] != nil && (body["charges"][0] != '[' || json.Unmarshal(body["charges"], &charges) != nil) {
		return nil, errors.New("charges")
	}
	for _, charge := range charges {
		fields, err := members(charge, "limit", "key", "plan", "units")
		if err != nil {
			return nil, err
		}
		asked := ask{units: 1}
		for name, into := range map[string]*string{"limit": &asked.name, "key": &asked.key, "plan": &asked.plan} {
			switch value := fields[name]; {
			case name == "plan" && (value == nil || string(value) == "null"):
			case value == nil || value[0] != '"' || string(value) == `""` && name != "plan":
				return nil, errors.New(name)
			default:
				_ = json.Unmarshal(value, into)
			}
		}
		if units := string(fields["units"]); units != "" {
			asked.units, err = strconv.ParseInt(units, 10, 64)
			if err != nil || fmt.Sprint(asked.units) != units {
				return nil, errors.New("units")
			}
		}
		read.charges = append(read.charges, asked)
	}
	return read, nil
}

// members returns the members of an object, none of which is there twice or not among these.
func members(text []byte, known ...string) (map[string]json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return nil, errors.New("no object")
	}
	all := make(map[string]json.RawMessage)
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil && err != io.EOF {
			return nil, err
		}
		word, _ := name.(string)
		if all[word] != nil || !slices.Contains(known, word) {
			return nil, errors.New("twice, or unknown")
		}
		all[word] = value
	}
	return all, nil
}
