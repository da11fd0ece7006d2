; Sums. The bytes after a step are those before it and the changes of what the step names: the sum over all
; aNodes changes with one aNode by `change`. Several aNodes: one after the other.
; Induction over the aNodes, in any order: `sum` and `sum_after` are over the first so many, `seen` is
; whether the aNode that changes is among them.
; Used: memory (act, dev and host are prefix sums; a size is `act.size` for act).

(push 1) ; step: an aNode that does not change
(declare-const sum Int) (declare-const sum_after Int) (declare-const seen Bool)
(declare-const delta Int) (declare-const there Bool) (declare-const after Bool) (declare-const size Int)
(assert (! (= sum_after (+ sum (ite seen delta 0))) :named hypothesis))
(assert (! (= after there) :named unchanged))
(assert (not (= (+ sum_after (counts after size)) (+ (+ sum (counts there size)) (ite seen delta 0)))))
(check-sat)
(pop 1)

(push 1) ; step: the aNode that changes, seen once
(declare-const sum Int) (declare-const sum_after Int) (declare-const seen Bool)
(declare-const delta Int) (declare-const there Bool) (declare-const after Bool) (declare-const size Int)
(assert (! (= sum_after (+ sum (ite seen delta 0))) :named hypothesis))
(assert (! (not seen) :named once))
(assert (! (= delta (change there after size)) :named changes))
(assert (not (= (+ sum_after (counts after size)) (+ (+ sum (counts there size)) delta))))
(check-sat)
(pop 1)
