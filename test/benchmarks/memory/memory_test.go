package main

import (
	"testing"
	"time"
)

func TestSystemsKeepTheLimit(t *testing.T) {
	const n = 10
	for _, s := range systems {
		t.Run(s.name, func(t *testing.T) {
			system, err := s.new(limit{n, 24 * time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			for k := range 3 {
				for i := range 2 * n {
					ok, err := system.take(t.Context(), key(k))
					if err != nil || ok != (i < n) {
						t.Fatalf("call %d of key %d: %v, %v", i+1, k, ok, err)
					}
				}
			}
			if some, ok := system.(several); ok {
				for i := range 4 {
					ok, err := some.takeN(t.Context(), key(4), 3)
					if err != nil || ok != (i < n/3) {
						t.Fatalf("call %d of three units: %v, %v", i+1, ok, err)
					}
				}
			}
		})
	}
}

func TestSystemsAdmitWhatTheBenchmarksNeed(t *testing.T) {
	for _, s := range systems {
		t.Run(s.name, func(t *testing.T) {
			system, err := s.new(never)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 10_000 {
				if ok, err := system.take(t.Context(), key(0)); err != nil || !ok {
					t.Fatalf("call %d: %v, %v", i+1, ok, err)
				}
			}
		})
	}
}
