"""Plans carried out: processes that train the stages of a model, and what each spends its time on."""
