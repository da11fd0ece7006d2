; Frame. alive' = H or B or ((M or alive) and not (E or D)) of section 3, for one aNode, is the function of
; machine.smt2 for the part that the step has for it, and nothing changes for an aNode that the step
; does not name. What an update ends is the caller's at first (`own`) and not in H. `invariant`: what the caller holds is alive; it holds at first and every step keeps it.
; Induction over the steps.
; Used: machine.EncodedMachine (only aNodes that a step names get a new constant), memory (sums).

(push 1) ; an aNode that the step does not name
(declare-const alive Bool) (declare-const kind Int)
(declare-const M Bool) (declare-const B Bool) (declare-const E Bool) (declare-const D Bool)
(define-fun next () Bool (or (caller kind) B (and (or M alive) (not (or E D)))))
(assert (! (=> (caller kind) alive) :named invariant))
(assert (! (not M) :named not_made))
(assert (! (not B) :named not_named))
(assert (! (not E) :named not_ended))
(assert (! (not D) :named not_freed))
(assert (not (= next alive)))
(check-sat)
(pop 1)

(push 1) ; a result
(declare-const alive Bool) (declare-const kind Int) (declare-const nosave Bool)
(declare-const M Bool) (declare-const B Bool) (declare-const E Bool) (declare-const D Bool)
(define-fun next () Bool (or (caller kind) B (and (or M alive) (not (or E D)))))
(assert (! M :named made))
(assert (! (not B) :named not_named))
(assert (! (not E) :named not_ended))
(assert (! (= D (and nosave (= kind kind.phantom))) :named dropped))
(assert (not (= next (make.alive kind nosave))))
(check-sat)
(pop 1)

(push 1) ; what is freed
(declare-const alive Bool) (declare-const kind Int)
(declare-const flying Bool) (declare-const result Bool) (declare-const done Bool)
(declare-const M Bool) (declare-const B Bool) (declare-const E Bool) (declare-const D Bool)
(define-fun next () Bool (or (caller kind) B (and (or M alive) (not (or E D)))))
(assert (! (free.ok alive kind flying result done) :named guard))
(assert (! (not B) :named not_named))
(assert (! D :named gone))
(assert (not (= next (free.alive alive kind))))
(check-sat)
(pop 1)

(push 1) ; what an accumulation or an update ends
(declare-const alive Bool) (declare-const kind Int) (declare-const flying Bool)
(declare-const M Bool) (declare-const B Bool) (declare-const E Bool) (declare-const D Bool)
(define-fun next () Bool (or (caller kind) B (and (or M alive) (not (or E D)))))
(assert (! (end.ok kind flying) :named guard))
(assert (! (not B) :named not_named))
(assert (! E :named gone))
(assert (not (= next end.alive)))
(check-sat)
(pop 1)

(push 1) ; what an accumulation or an update names, or a prefetch brings
(declare-const alive Bool) (declare-const kind Int)
(declare-const M Bool) (declare-const B Bool) (declare-const E Bool) (declare-const D Bool)
(define-fun next () Bool (or (caller kind) B (and (or M alive) (not (or E D)))))
(assert (! (or B (and M (not (or E D)))) :named there))
(assert (not (and (= next become.alive) (= next prefetch.alive))))
(check-sat)
(pop 1)

(push 1) ; the invariant is kept
(declare-const alive Bool) (declare-const kind Int) (declare-const nosave Bool) (declare-const flying Bool)
(assert (! (=> (caller kind) alive) :named invariant))
(assert (not (and (=> (caller kind) (start.alive kind)) (=> (caller kind) (make.alive kind nosave))
                  (=> (caller kind) (free.alive alive kind))
                  (=> (and (caller kind) (end.ok kind flying)) end.alive))))
(check-sat)
(pop 1)
