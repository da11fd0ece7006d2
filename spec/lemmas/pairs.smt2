; Pairs (Lemma 3). A race is between a copy and a use at a later step: two operations of the compute stream
; are ordered, and what stands at or before the step that issues a copy happens before the copy.
; Operations are numbers: c(i) is step i on the compute stream, x the copy.
; Used: races._RaceEncoder (a use is held against copies of earlier steps only).

(push 1)
(declare-fun before (Int Int) Bool)
(declare-fun c (Int) Int)
(declare-const x Int) (declare-const issue Int) (declare-const j Int)
(assert (! (forall ((o Int) (p Int) (q Int)) (=> (and (before o p) (before p q)) (before o q)))
           :named transitive))
(assert (! (forall ((i Int) (k Int)) (=> (< i k) (before (c i) (c k)))) :named stream))
(assert (! (before (c issue) x) :named issued))
(assert (! (<= j issue) :named not_later))
(assert (not (before (c j) x)))
(check-sat)
(pop 1)
